//! Raw JSON, read one level at a time: a value stays the text that it is until somebody asks what is in it.

use std::{borrow::Cow, fmt};

use memchr::{memchr, memmem};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

pub(crate) use self::leaves::leaves;

mod leaves;

/// The keys and values of an object, in their order; a key may stand there twice.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Fields<'a> {
    /// The fields of a value, if it is an object.
    pub(crate) fn of(json: &'a str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), *value))
    }

    /// The value of a key; the last one where there are more, as most readers have it.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.iter().filter(|(found, _)| *found == key).last().map(|(_, value)| value)
    }

    /// The text of a key's value, if it is a string.
    pub(crate) fn string(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(string)
    }

    /// The fields of a key's value, if it is an object.
    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        self.get(key).and_then(Self::of)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(Text(key)) = map.next_key()? {
                    fields.push((key, map.next_value::<&RawValue>()?.get()));
                }
                Ok(Fields(fields))
            }
        }

        from.deserialize_map(Reader)
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text of a value, if it is a string, with U+FFFD for each half of a surrogate pair: strings that were cut in the
/// middle of a pair have them, and no text does.
pub(crate) fn string(json: &str) -> Option<Cow<'_, str>> {
    if !json.starts_with('"') {
        return None;
    }
    let text = serde_json::from_str(json).ok().map(|Text(text)| text);
    text.or_else(|| serde_json::from_str(&without_halves(json)?).ok().map(Cow::Owned))
}

/// A string with `\ufffd` for each half of a surrogate pair; none if it has none.
fn without_halves(json: &str) -> Option<String> {
    let mut whole = String::with_capacity(json.len());
    for half in escapes(json.as_bytes()).filter(|escape| escape.character.is_none()) {
        whole.push_str(json.get(whole.len()..half.start)?);
        whole.push_str(r"\ufffd");
    }
    let rest = json.get(whole.len()..)?;
    (!whole.is_empty()).then(|| whole + rest)
}

/// Whether a value is a string with half a surrogate pair in it.
pub(crate) fn has_half(json: &[u8]) -> bool {
    let may_have = || memmem::find(json, b"\\u").is_some();
    json.starts_with(b"\"") && may_have() && escapes(json).any(|escape| escape.character.is_none())
}

/// The text of a value that is a string with half a surrogate pair in it; none of any other.
pub(crate) fn halved(json: &[u8]) -> Option<Cow<'_, str>> {
    str::from_utf8(json).ok().filter(|_| json.ends_with(b"\"") && has_half(json)).and_then(string)
}

/// Where in a string, as it is written, the byte `at` of its text is: of [`string`], where a character begins.
pub(crate) fn written_at(json: &[u8], at: usize) -> usize {
    // Up to the present escape: the bytes that are written, and those of the text.
    let (mut written, mut read) = (1, 0);
    for Escape { start, end, character } in escapes(json) {
        let before = start - written;
        if at <= read + before {
            break;
        }
        read += before + character.unwrap_or(char::REPLACEMENT_CHARACTER).len_utf8();
        written = end;
    }
    written + at.saturating_sub(read)
}

/// An escape in a string; both where two stand for one character.
#[derive(Clone, Copy, Debug)]
struct Escape {
    start: usize,
    end: usize,
    /// None for half a surrogate pair.
    character: Option<char>,
}

/// The escapes of a string, from first to last, up to one that is none.
fn escapes(json: &[u8]) -> impl Iterator<Item = Escape> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + memchr(b'\\', json.get(from..)?)?;
        let escape = match unit(json, start) {
            Some(first) => {
                let second = unit(json, start + UNIT).filter(|_| (0xD800..0xDC00).contains(&first));
                let one = || Escape { start, end: start + UNIT, character: decoded([first]) };
                let pair = second.and_then(|second| decoded([first, second]));
                pair.map_or_else(one, |pair| Escape { start, end: start + 2 * UNIT, character: Some(pair) })
            }
            // All others stand for one byte, as the one behind the backslash is.
            None => Escape { start, end: start + 2, character: json.get(start + 1).map(|&byte| byte.into()) },
        };
        from = escape.end;
        Some(escape)
    })
}

/// The bytes of `\u0000`.
const UNIT: usize = 6;

/// The number in `\u0000`, if that is what is written there.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + UNIT)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// The one character that these numbers stand for.
fn decoded<const N: usize>(units: [u16; N]) -> Option<char> {
    let mut characters = char::decode_utf16(units);
    let first = characters.next()?.ok()?;
    characters.next().is_none().then_some(first)
}

/// As [`String::from_utf8_lossy`], which checks one character after the other, but quicker where all of it is text.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// The elements of a value, if it is an array.
pub(crate) fn elements(json: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// The value without white space between its parts.
pub(crate) fn compact(json: &str) -> String {
    let mut in_string = false;
    let mut escaped = false;
    let keep = |c: &char| {
        let keep = in_string || !c.is_ascii_whitespace();
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
        keep
    };
    json.chars().filter(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_goes_only_where_it_says_nothing() {
        let json = "{ \"a b\" :\n[ 1,\t\" \\\" \\\\\" , \"\\\\ \\\" [ \" ] }";
        assert_eq!(compact(json), "{\"a b\":[1,\" \\\" \\\\\",\"\\\\ \\\" [ \"]}");
    }

    #[test]
    fn half_a_surrogate_pair_reads_as_a_replacement_character() {
        for (json, text) in [
            (r#""""#, ""),
            (r#""a\u00e9\n\"\\""#, "aé\n\"\\"),
            (r#""\ud83d\ude00""#, "😀"),
            (r#""\ud83d""#, "\u{FFFD}"),
            (r#""a\uDE00b""#, "a\u{FFFD}b"),
            (r#""\ud83d\ud83d\ude00""#, "\u{FFFD}😀"),
            (r#""\ud83d\n\ude00é""#, "\u{FFFD}\n\u{FFFD}é"),
            (r#""\\ud83d\ud83d\u0041""#, "\\ud83d\u{FFFD}A"),
        ] {
            assert_eq!(string(json).as_deref(), Some(text), "{json}");
            assert_eq!(has_half(json.as_bytes()), serde_json::from_str::<String>(json).is_err(), "{json}");
        }
        for json in [r#""\ud83d"#, r#""\ud83d\x""#, r#""\ud8""#, r#"{"a":"\ud83d"}"#, r#"["\ud83d"]"#, "", "\""] {
            assert_eq!(string(json), None, "{json}");
        }
        assert!(!has_half(br#"{"a":"\ud83d"}"#));
    }

    #[test]
    fn each_character_of_a_text_is_found_where_it_is_written() {
        let pieces = [
            "a",
            "é",
            "😀",
            r"\n",
            r"\\",
            r"\u0041",
            r"\u00e9",
            r"\u20ac",
            r"\ud83d\ude00",
            r"\ud83d",
            r"\udc00",
            "ude00",
        ];
        for (one, two) in pieces.iter().flat_map(|one| pieces.iter().map(move |two| (one, two))) {
            let json = format!("\"{one}{two}{one}\"");
            let text = string(&json).unwrap();
            let places: Vec<_> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
            for at in places {
                let (before, behind) = json.split_at(written_at(json.as_bytes(), at));
                let (before, behind) = (format!("{before}\""), format!("\"{behind}"));
                assert_eq!(string(&before).as_deref(), text.get(..at), "{json} {at}");
                assert_eq!(string(&behind).as_deref(), text.get(at..), "{json} {at}");
            }
        }
    }
}
