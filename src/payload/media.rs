//! Images, files and sound in base64: which type they have, and the bytes that the base64 encodes.
//!
//! A type is one of a short list. The first bytes decide; what the client says counts only where they do not, as its word
//! becomes a header field of an answer and the name of a file.

use std::{borrow::Cow, ops::Range};

use base64::{Engine, engine::general_purpose::STANDARD};
use memchr::memchr;

use crate::raw;

/// The type of a payload that was base64 in a request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MediaType {
    /// Anything that is not on the list.
    Bytes,
    /// Plain text.
    Text,
    /// An image.
    Png,
    /// An image.
    Jpeg,
    /// An image.
    Gif,
    /// An image.
    Webp,
    /// A document.
    Pdf,
    /// Sound.
    Wav,
    /// Sound.
    Mp3,
    /// Sound.
    Ogg,
    /// Sound.
    Flac,
}

use MediaType::{Bytes, Flac, Gif, Jpeg, Mp3, Ogg, Pdf, Png, Text, Wav, Webp};

/// Each type with its name and the end of a file's name. Stores keep a type as its place here: new ones go to the end.
const TYPES: [(MediaType, &str, &str); 11] = [
    (Bytes, "application/octet-stream", "bin"),
    (Text, "text/plain", "txt"),
    (Png, "image/png", "png"),
    (Jpeg, "image/jpeg", "jpg"),
    (Gif, "image/gif", "gif"),
    (Webp, "image/webp", "webp"),
    (Pdf, "application/pdf", "pdf"),
    (Wav, "audio/wav", "wav"),
    (Mp3, "audio/mpeg", "mp3"),
    (Ogg, "audio/ogg", "ogg"),
    (Flac, "audio/flac", "flac"),
];

/// The ends of the names of exported files.
pub fn extensions() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(_, _, extension)| *extension)
}

impl MediaType {
    /// The type of bytes of which the client says that they are `declared`, as a type of MIME or the name of a format.
    fn of(bytes: &[u8], declared: Option<Self>) -> Self {
        Self::recognized(bytes).or(declared).unwrap_or(Bytes)
    }

    fn named(declared: &str) -> Option<Self> {
        let plain = || declared.bytes().filter(|byte| *byte != b'\\'); // of an escaped slash
        let is_it = |name: &str| name.bytes().eq(plain().map(|byte| byte.to_ascii_lowercase()));
        TYPES.iter().find(|(_, name, format)| is_it(name) || is_it(format)).map(|(media, ..)| *media)
    }

    /// The type that the first bytes show.
    fn recognized(bytes: &[u8]) -> Option<Self> {
        Some(match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Png,
            [0xFF, 0xD8, 0xFF, ..] => Jpeg,
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Gif,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Webp,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Wav,
            [b'%', b'P', b'D', b'F', b'-', ..] => Pdf,
            [b'I', b'D', b'3', 2..=4, ..] => Mp3,
            [b'O', b'g', b'g', b'S', 0, ..] => Ogg,
            [b'f', b'L', b'a', b'C', 0, ..] => Flac,
            _ => return None,
        })
    }

    fn entry(self) -> (MediaType, &'static str, &'static str) {
        TYPES.into_iter().find(|(media, ..)| *media == self).unwrap_or((Bytes, "application/octet-stream", "bin"))
    }

    /// Its name: `image/png`.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// How names of files end that hold it: `png`.
    pub fn extension(self) -> &'static str {
        self.entry().2
    }

    /// The number that a store keeps.
    pub fn code(self) -> u8 {
        TYPES.iter().zip(0..).find(|((media, ..), _)| *media == self).map_or(0, |(_, code)| code)
    }

    /// The type of which a store has kept the number.
    pub fn from_code(code: u8) -> Option<Self> {
        TYPES.get(usize::from(code)).map(|(media, ..)| *media)
    }
}

/// Base64 in a JSON string, any character of which may be written as an escape.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Base64 {
    /// Where it is in the string as it is written, quotes and all.
    pub range: Range<usize>,
    /// The type that the client says it has.
    pub declared: Option<MediaType>,
}

/// Bytes, and their type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Media {
    /// The type.
    pub media: MediaType,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// No data URL that is read has a longer beginning.
const MAX_URL_HEAD: usize = 256;

/// A text of base64 alone that is shorter is left as the text that it is.
const MIN_TEXT: usize = 1024;

/// So many bytes show their type.
const SHOWS_TYPE: usize = 24;

/// The length of the longest escape of a character that base64 has.
const ESCAPE: usize = 6;

impl Base64 {
    /// All of a string, given as it is written.
    pub fn whole(string: &[u8], declared: Option<&str>) -> Option<Self> {
        let inner = string.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        Some(Self { range: 1..inner.len() + 1, declared: declared.and_then(MediaType::named) })
    }

    /// Returns what is after the comma of a string that is a data URL.
    pub fn of_url(string: &[u8]) -> Option<Self> {
        let head = string.get(1..MAX_URL_HEAD.min(string.len())).filter(|_| is_data_url(string))?;
        let comma = memchr(b',', head)?;
        let head = str::from_utf8(head.get(..comma)?).ok()?;
        let declared = head.strip_prefix("data:")?.strip_suffix(";base64")?;
        let declared = MediaType::named(declared.split_once(';').map_or(declared, |(name, _)| name));
        let end = string.strip_suffix(b"\"")?.len();
        let start = comma + 2;
        Some(Self { range: start..end.max(start), declared })
    }

    /// That of a string that is a data URL, or long and of a type that it shows.
    pub fn of_text(string: &[u8]) -> Option<Self> {
        let shown = || {
            let base64 = Self::whole(string, None).filter(|_| string.len() >= MIN_TEXT)?;
            MediaType::recognized(&base64.beginning(string, SHOWS_TYPE)?)?;
            Some(base64)
        };
        Self::of_url(string).or_else(shown)
    }

    /// Returns what it encodes in the string. None if that, in base64, is not to the byte what is written.
    pub fn decode(&self, string: &[u8]) -> Option<Media> {
        let bytes = decoded(string.get(self.range.clone())?)?;
        Some(Media { media: MediaType::of(&bytes, self.declared), bytes })
    }

    /// The first bytes of what it encodes, at most about as many as asked for.
    pub fn beginning(&self, string: &[u8], most: usize) -> Option<Vec<u8>> {
        let (written, most) = (string.get(self.range.clone())?, most.div_ceil(3) * 4);
        let plain = written.get(..most).unwrap_or(written);
        let base64 = match memchr(b'\\', plain) {
            Some(_) => unescaped(whole_escapes(written.get(..most * ESCAPE).unwrap_or(written)))?,
            None => Cow::Borrowed(plain),
        };
        STANDARD.decode(base64.get(..base64.len().min(most) / 4 * 4)?).ok()
    }
}

/// Whether a string is a data URL, as far as its beginning shows.
pub fn is_data_url(string: &[u8]) -> bool {
    string.starts_with(b"\"data:")
}

/// What base64 encodes that is written in a JSON string. There is one way to write bytes in base64, and any other is
/// refused: decoding loses no bit.
pub(super) fn decoded(written: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(unescaped(written)?).ok()
}

/// The text of a part of a JSON string, without its escapes.
fn unescaped(written: &[u8]) -> Option<Cow<'_, [u8]>> {
    if memchr(b'\\', written).is_none() {
        return Some(Cow::Borrowed(written));
    }
    let string = [b"\"", written, b"\""].concat();
    Some(Cow::Owned(raw::unescaped(str::from_utf8(&string).ok()?)?.into_owned().into_bytes()))
}

/// Up to an escape that may not be all there.
fn whole_escapes(written: &[u8]) -> &[u8] {
    let end = written.len().saturating_sub(ESCAPE - 1);
    let cut = written.get(end..).and_then(|tail| memchr(b'\\', tail)).map_or(written.len(), |at| end + at);
    written.get(..cut).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ";

    fn of_text(text: &str) -> Option<MediaType> {
        let string = format!("\"{text}\"");
        let base64 = Base64::of_text(string.as_bytes())?;
        base64.decode(string.as_bytes()).map(|media| media.media)
    }

    #[test]
    fn types_keep_their_numbers_and_names() {
        for (code, (media, name, _)) in (0..).zip(TYPES) {
            assert_eq!((media.code(), MediaType::from_code(code), media.name()), (code, Some(media), name));
            assert_eq!(MediaType::named(name), Some(media));
        }
        assert_eq!((Png.code(), Flac.code(), MediaType::from_code(11)), (2, 10, None));
    }

    #[test]
    fn the_first_bytes_decide_and_then_the_client_if_the_list_has_its_type() {
        let of = |declared: Option<&str>| MediaType::of(b"plain", declared.and_then(MediaType::named));
        assert_eq!(MediaType::of(b"%PDF-1.7", Some(Png)), Pdf);
        assert_eq!(MediaType::of(b"RIFF....WAVEfmt ", None), Wav);
        assert_eq!(MediaType::of(b"RIFF....WEBPVP8 ", None), Webp);
        assert_eq!([of(Some("TEXT/Plain")), of(Some("mp3")), of(Some("image\\/png"))], [Text, Mp3, Png]);
        for active in ["text/html", "image/svg+xml", "application/xhtml+xml", "image/png\r\nx: y", ""] {
            assert_eq!(of(Some(active)), Bytes, "{active}");
        }
        assert_eq!(of(None), Bytes);
    }

    #[test]
    fn data_urls_and_long_base64_of_a_known_type_are_found_in_texts() {
        assert_eq!(of_text(&format!("data:image/jpeg;base64,{PNG}")), Some(Png));
        assert_eq!(of_text("data:text/html;charset=utf-8;base64,PGI+"), Some(Bytes));
        assert_eq!(of_text(r"data:image\/gif;base64,\/\/\/\/"), Some(Gif));
        assert_eq!(of_text(&PNG.repeat(40)), Some(Png));
        // Encoders escape what HTML or a script could misread, and `/`.
        let escaped = |text: &str, of: &[char]| {
            let escape = |c: char| if of.contains(&c) { format!("\\u{:04X}", c as u32) } else { c.to_string() };
            text.chars().map(escape).collect::<String>()
        };
        let jpeg = format!("/9j/4AA+{}", "A+/B".repeat(400));
        for text in [format!("data:image/jpeg;base64,{jpeg}"), jpeg] {
            for of in [&['+'][..], &['/', '+'], &['/', '+', '9']] {
                assert_eq!(of_text(&escaped(&text, of)), Some(Jpeg), "{of:?}: {text:.40}");
                assert_eq!(is_data_url(format!("\"{}\"", escaped(&text, of)).as_bytes()), text.starts_with("data:"));
            }
        }
        for text in [
            PNG,
            &"QUJD".repeat(400),
            "data:image/svg+xml,<svg/>",
            &format!("data:image/png;base64,{PNG}="),
            &format!("data:image/png;base64,{PNG} "),
            &format!("see data:image/png;base64,{PNG}"),
            &format!("data:{};base64,{PNG}", "x".repeat(300)),
            "data:image/png;base64,QR==",
            "data:",
            "",
        ] {
            assert_eq!(of_text(text), None, "{text}");
        }
        assert_eq!(Base64::of_text(b"\"data:image/png;base64,"), None);
    }

    #[test]
    fn what_is_decoded_is_written_in_base64_as_it_was() {
        let check = |written: &str| {
            let bytes = decoded(written.as_bytes());
            assert!(bytes.as_ref().is_none_or(|bytes| STANDARD.encode(bytes) == written), "{written}");
            bytes
        };
        assert_eq!(check("QUI=").as_deref(), Some(&b"AB"[..]));
        assert_eq!(check("").as_deref(), Some(&b""[..]));
        for other in ["QUI", "QUJ=", "QUI=\n", "QU\\nI=", "QU-_", "QUI==", "=", "Q"] {
            assert_eq!(check(other), None, "{other}");
        }
    }

    #[test]
    fn the_beginning_is_decoded_without_the_rest() {
        let string = format!("\"{}!\"", PNG.repeat(50));
        let base64 = Base64::whole(string.as_bytes(), None).unwrap();
        assert_eq!(base64.beginning(string.as_bytes(), 24).unwrap().len(), 24);
        assert_eq!(base64.decode(string.as_bytes()), None);
    }
}
