//! How many tokens an image is, by its width and height, which are read from its first bytes.
//!
//! The rules are those that OpenAI and Anthropic publish for most of their models. Where the size cannot be read, or the
//! image is only a link, it counts as a large one does.

use crate::payload::media::Base64;

/// An image of which OpenAI's models see a small copy.
pub const LOW_DETAIL: usize = 85;

/// A tile of 512 × 512, of which OpenAI's models see an image in detail beside the small copy.
const TILE: usize = 170;

/// An image of 1024 × 1024 in tiles.
pub const USUAL_IN_TILES: usize = LOW_DETAIL + 4 * TILE;

/// The most that an image has at Anthropic: larger ones are scaled down.
pub const MOST_BY_AREA: usize = 1600;

/// The size of an image in pixels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dimensions {
    /// Its width.
    pub width: usize,
    /// Its height.
    pub height: usize,
}

/// The size of a JPEG follows the notes of cameras, a small copy among them.
const MAX_HEAD: usize = 64 << 10;

impl Dimensions {
    /// Of the image in a JSON string, which is a data URL or base64.
    pub fn in_string(json: &str) -> Option<Self> {
        let string = json.as_bytes();
        let base64 = Base64::of_url(string).or_else(|| Base64::whole(string, None))?;
        Self::of(&base64.beginning(string, MAX_HEAD)?)
    }

    /// Of an image that begins with these bytes.
    fn of(bytes: &[u8]) -> Option<Self> {
        let [width, height] = match bytes {
            [0x89, b'P', b'N', b'G', ..] => [be(bytes, 16, 4)?, be(bytes, 20, 4)?],
            [b'G', b'I', b'F', b'8', ..] => [le(bytes, 6, 2)?, le(bytes, 8, 2)?],
            [0xFF, 0xD8, ..] => of_jpeg(bytes)?,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => of_webp(bytes)?,
            _ => return None,
        };
        (width > 0 && height > 0).then_some(Self { width, height })
    }

    /// The tokens at OpenAI, in detail: scaled down to 2048 at the most and 768 on the shorter side, in tiles of 512.
    pub fn in_tiles(self) -> usize {
        let Self { width, height } = self.scaled(self.width.max(self.height), 2048);
        let fit = Self { width, height }.scaled(width.min(height), 768);
        LOW_DETAIL + TILE * fit.width.div_ceil(512) * fit.height.div_ceil(512)
    }

    /// The tokens at Anthropic: one for 750 pixels, scaled down to 1568 at the most.
    pub fn by_area(self) -> usize {
        let Self { width, height } = self.scaled(self.width.max(self.height), 1568);
        (width * height).div_ceil(750).min(MOST_BY_AREA)
    }

    /// Made smaller if `side` is more than `most`, as much as takes that to it.
    fn scaled(self, side: usize, most: usize) -> Self {
        let fit = |length: usize| if side > most { (length * most / side).max(1) } else { length };
        Self { width: fit(self.width), height: fit(self.height) }
    }
}

/// The first marker of a frame has the size; others have only their length before what they say.
fn of_jpeg(bytes: &[u8]) -> Option<[usize; 2]> {
    let mut at = 2;
    loop {
        match *bytes.get(at..at + 2)? {
            [0xFF, 0xFF] => at += 1,
            [0xFF, 0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF] => {
                return Some([be(bytes, at + 7, 2)?, be(bytes, at + 5, 2)?]);
            }
            [0xFF, 0x01 | 0xD0..=0xD8] => at += 2,
            [0xFF, _] => at += 2 + be(bytes, at + 2, 2)?,
            _ => return None,
        }
    }
}

fn of_webp(bytes: &[u8]) -> Option<[usize; 2]> {
    match bytes.get(12..16)? {
        b"VP8 " => Some([le(bytes, 26, 2)? & 0x3FFF, le(bytes, 28, 2)? & 0x3FFF]),
        b"VP8L" => {
            let bits = le(bytes, 21, 4)?;
            Some([(bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1])
        }
        b"VP8X" => Some([le(bytes, 24, 3)? + 1, le(bytes, 27, 3)? + 1]),
        _ => None,
    }
}

fn be(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    Some(bytes.get(at..at + len)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

fn le(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    Some(bytes.get(at..at + len)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: Option<[usize; 2]>) {
        assert_eq!(Dimensions::of(bytes).map(|found| [found.width, found.height]), expected, "{bytes:?}");
        for end in 0..bytes.len() {
            let _cut_short = Dimensions::of(&bytes[..end]);
        }
    }

    #[test]
    fn the_size_is_read_from_the_first_bytes() {
        check(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x03\x20", Some([1280, 800]));
        check(b"GIF89a\x05\0\x03\x01", Some([5, 259]));
        check(b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xdb\0\x02\xff\xc2\0\x11\x08\x03\x20\x05\0", Some([1280, 800]));
        check(b"RIFF....WEBPVP8 ....\0\0\0\x9d\x01\x2a\0\x05\x20\x43", Some([1280, 800]));
        check(b"RIFF....WEBPVP8L....\x2f\xff\xc4\xc7\0", Some([1280, 800]));
        check(b"RIFF....WEBPVP8X....\0\0\0\0\xff\x04\0\x1f\x03\0", Some([1280, 800]));
        check(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\0\0\0\x03\x20", None);
        check(b"\xff\xd8\xff\xd9\0\0", None);
        check(b"\xff\xd8ab", None);
        check(b"%PDF-1.7", None);
        assert_eq!(
            Dimensions::in_string(r#""data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAMAAAAC""#),
            Some(Dimensions { width: 3, height: 2 })
        );
        assert_eq!(Dimensions::in_string(r#""iVBORw0KGgoAAAANSUhEUgAAAAMAAAAC""#).unwrap().height, 2);
        assert_eq!(Dimensions::in_string(r#""https://x/a.png""#), None);
    }

    /// The examples of the documentation of either API.
    #[test]
    fn tokens_are_those_that_the_apis_publish() {
        let of = |width, height| Dimensions { width, height };
        assert_eq!([of(1024, 1024), of(2048, 4096), of(512, 512)].map(Dimensions::in_tiles), [765, 1105, 255]);
        assert_eq!(of(1024, 1024).in_tiles(), USUAL_IN_TILES);
        assert_eq!([of(200, 200), of(1000, 1000), of(1092, 1092)].map(Dimensions::by_area), [54, 1334, 1590]);
        assert_eq!(of(8000, 8000).by_area(), MOST_BY_AREA);
        let widest = of(u32::MAX as usize, u32::MAX as usize);
        assert_eq!((widest.in_tiles(), widest.by_area()), (765, MOST_BY_AREA));
    }
}
