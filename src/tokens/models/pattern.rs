//! Patterns of names.

use std::{str::Chars, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::wildcard;

/// A name or a pattern of names: `*` matches any characters, `?` one, `[ab]` and `{a,b}` one of the listed.
/// Letter case does not matter.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq)]
#[display("{text}")]
pub struct Pattern {
    text: Arc<str>,
    /// The patterns without braces that it represents.
    forms: Arc<[Form]>,
}

type Form = Vec<Piece>;

/// What matches one character, or any number of them.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Piece {
    Any,
    AnyOne,
    Character(char),
    Class { ranges: Vec<(char, char)>, negated: bool },
}

/// The most patterns without braces that one with braces represents.
const MAX_FORMS: usize = 256;

/// The most braces that are open at a time, as each is read by its own call.
const MAX_DEPTH: usize = 16;

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

    /// The one that this name alone fits.
    pub fn exact(name: &str) -> Self {
        Self { text: name.into(), forms: [name.chars().map(Piece::Character).collect()].into() }
    }

    /// Whether it matches this name.
    pub fn fits(&self, name: &str) -> bool {
        let fits = |form: &Form| {
            wildcard::matches(form.iter(), name, |piece| **piece == Piece::Any, |piece, found| piece.is(found))
        };
        self.forms.iter().any(fits)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.chars();
        match sequence(&mut rest, 0)? {
            (forms, End::Text) => Ok(Self { text: text.into(), forms: forms.into() }),
            _ => Err("a } has no {".to_owned()),
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

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

// === reading ===

/// The pieces up to the end of the text, or, inside of so many braces, up to a comma or the closing one.
fn sequence(rest: &mut Chars<'_>, depth: usize) -> Result<(Vec<Form>, End), String> {
    if depth > MAX_DEPTH {
        return Err(format!("more than {MAX_DEPTH} braces are open at a time"));
    }
    let mut forms = vec![Form::new()];
    loop {
        let piece = match rest.next() {
            None if depth > 0 => return Err("a { has no }".to_owned()),
            None => return Ok((forms, End::Text)),
            Some('}') => return Ok((forms, End::Brace)),
            Some(',') if depth > 0 => return Ok((forms, End::Comma)),
            Some('{') => {
                let alternatives = alternatives(rest, depth + 1)?;
                if forms.len() * alternatives.len() > MAX_FORMS {
                    return Err(too_many());
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
            Some('\\') => Piece::Character(rest.next().map(lower).ok_or("nothing stands behind the last \\")?),
            Some(character) => Piece::Character(lower(character)),
        };
        for form in &mut forms {
            form.push(piece.clone());
        }
    }
}

fn too_many() -> String {
    format!("it stands for more than {MAX_FORMS} patterns")
}

/// Returns what stands between braces.
fn alternatives(rest: &mut Chars<'_>, depth: usize) -> Result<Vec<Form>, String> {
    let mut alternatives = Vec::new();
    loop {
        let (forms, end) = sequence(rest, depth)?;
        alternatives.extend(forms);
        if alternatives.len() > MAX_FORMS {
            return Err(too_many());
        }
        if end != End::Comma {
            return Ok(alternatives);
        }
    }
}

/// Returns what stands between brackets. A closing one that comes first matches itself.
fn class(rest: &mut Chars<'_>) -> Result<Piece, String> {
    let negated = rest.as_str().starts_with(['!', '^']);
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        let first = rest.next().ok_or("a [ has no ]")?;
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

// === matching ===

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
        assert_eq!([wrong("a{b"), wrong("{a,{b}"), wrong("{")], ["a { has no }"; 3]);
        assert_eq!(
            (wrong("a}"), wrong("[]"), wrong("[!a")),
            ("a } has no {".into(), "a [ has no ]".into(), "a [ has no ]".into())
        );
        assert_eq!(wrong("a\\"), "nothing stands behind the last \\");
        let alternatives = "{a,b}".repeat(8);
        assert_eq!(Pattern::parse(&alternatives).unwrap().forms.len(), MAX_FORMS);
        assert_eq!(wrong(&(alternatives + "{a,b}")), "it stands for more than 256 patterns");
        let nested = |depth| "{".repeat(depth) + "a" + &"}".repeat(depth);
        assert!(Pattern::parse(&nested(MAX_DEPTH)).unwrap().fits("a"));
        assert_eq!(
            [wrong(&nested(MAX_DEPTH + 1)), wrong(&"{".repeat(100_000))],
            ["more than 16 braces are open at a time"; 2]
        );
    }
}
