//! Patterns of names.

use std::{fmt, str::Chars, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A name or a pattern of names: `*` stands for any characters, `?` for one, `[ab]` and `{a,b}` for one of these.
/// Letter case does not matter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pattern {
    text: Arc<str>,
    /// One without braces for each alternative.
    forms: Arc<[Form]>,
}

type Form = Vec<Piece>;

/// What stands for one character, or for any number of them.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Piece {
    Any,
    AnyOne,
    Character(char),
    Class { ranges: Vec<(char, char)>, negated: bool },
}

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
enum PatternError {
    #[error("a [ has no ]")]
    OpenClass,
    #[error("a {{ has no }}")]
    OpenBrace,
    #[error("a }} has no {{")]
    NoBrace,
    #[error("nothing stands behind the last \\")]
    Backslash,
    #[error("it stands for more than {MAX_FORMS} patterns")]
    TooMany,
}

/// A pattern with braces is as many without; no more than these.
const MAX_FORMS: usize = 256;

/// Where a sequence of pieces ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Comma,
    Brace,
    Text,
}

// === impl Pattern ===

impl Pattern {
    /// The one that every name fits.
    pub fn any() -> Self {
        Self { text: "*".into(), forms: [vec![Piece::Any]].into() }
    }

    /// Whether it stands for this name.
    pub fn fits(&self, name: &str) -> bool {
        self.forms.iter().any(|form| fits(form, name))
    }

    fn parse(text: &str) -> Result<Self, PatternError> {
        let mut rest = text.chars();
        match sequence(&mut rest, End::Text)? {
            (forms, End::Text) => Ok(Self { text: text.into(), forms: forms.into() }),
            _ => Err(PatternError::NoBrace),
        }
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text)
            .map_err(|error| D::Error::custom(format_args!("{text:?} is not a pattern such as \"gpt-4o*\": {error}")))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

// === reading ===

/// The pieces up to the end of the text, or, inside of braces, up to a comma or the closing one.
fn sequence(rest: &mut Chars<'_>, within: End) -> Result<(Vec<Form>, End), PatternError> {
    let mut forms = vec![Form::new()];
    loop {
        let piece = match rest.next() {
            None if within == End::Brace => return Err(PatternError::OpenBrace),
            None => return Ok((forms, End::Text)),
            Some('}') => return Ok((forms, End::Brace)),
            Some(',') if within == End::Brace => return Ok((forms, End::Comma)),
            Some('{') => {
                let alternatives = alternatives(rest)?;
                if forms.len() * alternatives.len() > MAX_FORMS {
                    return Err(PatternError::TooMany);
                }
                let joined = |form: &Form| {
                    alternatives.iter().map(|alternative| [form.as_slice(), alternative].concat()).collect()
                };
                forms = forms.iter().flat_map(|form| -> Vec<Form> { joined(form) }).collect();
                continue;
            }
            Some('*') => Piece::Any,
            Some('?') => Piece::AnyOne,
            Some('[') => class(rest)?,
            Some('\\') => Piece::Character(rest.next().map(lower).ok_or(PatternError::Backslash)?),
            Some(character) => Piece::Character(lower(character)),
        };
        for form in &mut forms {
            form.push(piece.clone());
        }
    }
}

/// What stands between braces.
fn alternatives(rest: &mut Chars<'_>) -> Result<Vec<Form>, PatternError> {
    let mut alternatives = Vec::new();
    loop {
        let (forms, end) = sequence(rest, End::Brace)?;
        alternatives.extend(forms);
        if alternatives.len() > MAX_FORMS {
            return Err(PatternError::TooMany);
        }
        if end != End::Comma {
            return Ok(alternatives);
        }
    }
}

/// What stands between brackets. A closing one that comes first stands for itself.
fn class(rest: &mut Chars<'_>) -> Result<Piece, PatternError> {
    let negated = rest.as_str().starts_with(['!', '^']);
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        let first = rest.next().ok_or(PatternError::OpenClass)?;
        if first == ']' && !ranges.is_empty() {
            return Ok(Piece::Class { ranges, negated });
        }
        let mut behind = rest.clone();
        let last = match (behind.next(), behind.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *rest = behind;
                last
            }
            _ => first,
        };
        ranges.push((first, last));
    }
}

// === asking ===

fn fits(form: &[Piece], name: &str) -> bool {
    let (mut form, mut name) = (form, name.chars());
    // Behind the last star, and where in the name what it stands for would end next.
    let mut star: Option<(&[Piece], Chars<'_>)> = None;
    loop {
        match (form.split_first(), name.clone().next()) {
            (Some((Piece::Any, behind)), _) => {
                star = Some((behind, name.clone()));
                form = behind;
            }
            (Some((piece, behind)), Some(found)) if piece.is(found) => {
                name.next();
                form = behind;
            }
            (None, None) => return true,
            _ => {
                // The star takes one character more; the last star is the only one that ever needs to.
                let Some((behind, rest)) = &mut star else { return false };
                if rest.next().is_none() {
                    return false;
                }
                (form, name) = (behind, rest.clone());
            }
        }
    }
}

impl Piece {
    fn is(&self, character: char) -> bool {
        match self {
            Self::Any | Self::AnyOne => true,
            Self::Character(wanted) => *wanted == lower(character),
            Self::Class { ranges, negated } => {
                let cases = [character, lower(character), upper(character)];
                let holds = |(first, last): &(char, char)| cases.iter().any(|case| (first..=last).contains(&case));
                ranges.iter().any(holds) != *negated
            }
        }
    }
}

/// Characters that become several in the other case stay what they are.
fn lower(character: char) -> char {
    let mut lower = character.to_lowercase();
    lower.next().filter(|_| lower.next().is_none()).unwrap_or(character)
}

fn upper(character: char) -> char {
    let mut upper = character.to_uppercase();
    upper.next().filter(|_| upper.next().is_none()).unwrap_or(character)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_fits_what_globset_says(
            pattern in r"([a-cA/.\-]|\*|\?|\[[!^]?[a-b\]][a-c]?\]|\[a-b\]|\\[*\[{]|\{[ab]{0,2}(,[bc*]{0,2}){0,2}\}){0,6}",
            name in r"[a-cA-C/.*\[{\-]{0,6}",
        ) {
            // Two stars are folders to globset, and nothing but one star here.
            prop_assume!(!pattern.contains("**") && !pattern.contains("*{*"));
            let glob = globset::GlobBuilder::new(&pattern).case_insensitive(true).empty_alternates(true).build();
            match (Pattern::parse(&pattern), glob) {
                (Ok(ours), Ok(glob)) => {
                    prop_assert_eq!(ours.fits(&name), glob.compile_matcher().is_match(&name), "{} {}", pattern, name);
                }
                (ours, glob) => prop_assert_eq!(ours.is_ok(), glob.is_ok(), "{} {:?} {:?}", pattern, ours, glob),
            }
        }
    }

    #[test]
    fn letter_case_does_not_matter_and_a_name_with_a_maker_fits_a_star() {
        for (pattern, name) in [
            ("GPT-4o*", "gpt-4O-mini"),
            ("*", "openai/gpt-4o"),
            ("openai/*", "OpenAI/x/y"),
            ("{gpt,o[13]}-*", "O3-mini"),
            ("{a,{b,c}d}e", "cde"),
            ("É", "é"),
            ("[É]?", "éx"),
            ("**a", "a"),
        ] {
            assert!(Pattern::parse(pattern).unwrap().fits(name), "{pattern} {name}");
        }
        assert!(!Pattern::parse("gpt-4").unwrap().fits("gpt-4o"));
        let (pattern, name) = ("a*".repeat(40) + "b", "a".repeat(4000));
        assert!(!Pattern::parse(&pattern).unwrap().fits(&name));
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_reason() {
        let wrong = |text: &str| Pattern::parse(text).unwrap_err();
        assert_eq!([wrong("a{b"), wrong("{a,{b}"), wrong("{")], [PatternError::OpenBrace; 3]);
        assert_eq!(
            (wrong("a}"), wrong("[]"), wrong("[!a")),
            (PatternError::NoBrace, PatternError::OpenClass, PatternError::OpenClass)
        );
        assert_eq!(wrong("a\\"), PatternError::Backslash);
        let alternatives = "{a,b}".repeat(8);
        assert_eq!(Pattern::parse(&alternatives).unwrap().forms.len(), MAX_FORMS);
        assert_eq!(wrong(&(alternatives + "{a,b}")), PatternError::TooMany);
    }
}
