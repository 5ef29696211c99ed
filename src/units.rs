//! Sizes and times as people write them in `proxy.toml`: `"64MiB"`, `"30s"`.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use chrono::DateTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes: a whole number and one of the units `B`, `KiB`, `MiB`, `GiB`, `kB`, `MB`, `GB`, such as
/// `"64MiB"`. `kB`, `MB` and `GB` are powers of 1000.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, Ord, PartialEq, PartialOrd)]
#[display("{}", written((*_0).into(), &SIZES[..3], "B"))]
pub struct ByteSize(pub u64);

/// A length of time: a whole number and one of the units `ms`, `s`, `m`, `h`, `d`, such as `"250ms"` or `"7d"`.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, Ord, PartialEq, PartialOrd)]
#[display("{}", written(_0.as_millis(), &TIMES, "ms"))]
pub struct Period(pub Duration);

/// A number such as `0.5`: more than 0, and at most 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Fraction(f64);

/// Why a size or a time could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnitError {
    /// Not a size.
    #[error("not a size: write a whole number and a unit, one of B, KiB, MiB, GiB, kB, MB, GB, such as \"64MiB\"")]
    Size,
    /// Not a time.
    #[error("not a time: write a whole number and a unit, one of ms, s, m, h, d, such as \"30s\"")]
    Time,
}

const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

const TIMES: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

// === impl ByteSize ===

impl ByteSize {
    /// `n` times 1024² bytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The size as a length in memory; the largest one on machines where it does not fit.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        scaled(text, &SIZES).map(Self).ok_or(UnitError::Size)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from, "a size such as \"64MiB\"")
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

// === impl Period ===

impl Period {
    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        scaled(text, &TIMES).map(|ms| Self(Duration::from_millis(ms))).ok_or(UnitError::Time)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from, "a time such as \"30s\"")
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

// === impl Fraction ===

impl Eq for Fraction {} // never NaN

impl Fraction {
    /// The whole.
    pub const ONE: Self = Self(1.0);

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The fraction, if it is one.
    pub fn new(part: f64) -> Option<Self> {
        (part > 0.0 && part <= 1.0).then_some(Self(part))
    }

    /// That part of a number, rounded down.
    pub fn of(self, whole: usize) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a part of a number that is not negative is between 0 and that number"
        )]
        let part = (self.0 * whole as f64) as usize;
        part.min(whole)
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let part = f64::deserialize(from)?;
        Self::new(part)
            .ok_or_else(|| de::Error::custom("the fraction is out of range; allowed: more than 0, at most 1"))
    }
}

// === helpers ===

/// `"64MiB"` as 64 × 2²⁰. The digits end where the unit begins, so a unit is matched whole, never as a suffix.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(split)?;
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    digits.parse::<u64>().ok()?.checked_mul(*scale)
}

/// A value with the largest unit that divides it without rest; with the least one if it is 0.
fn written(value: u128, units: &[(&str, u64)], least: &str) -> String {
    let value = u64::try_from(value).unwrap_or(u64::MAX);
    let unit = units.iter().find(|(_, scale)| value != 0 && value.is_multiple_of(*scale));
    let (name, scale) = unit.copied().unwrap_or((least, 1));
    format!("{}{name}", value / scale)
}

/// Reads a list of tables or strings, or one of them alone; `wanted` says what it should hold where there is neither.
pub fn one_or_more<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D, wanted: &str) -> Result<Vec<T>, D::Error> {
    struct OneOrMore<'e, T>(&'e str, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for OneOrMore<'_, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            Ok(vec![T::deserialize(de::value::StrDeserializer::new(text))?])
        }

        fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<Vec<T>, A::Error> {
            Ok(vec![T::deserialize(de::value::MapAccessDeserializer::new(table))?])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(list))
        }
    }

    from.deserialize_any(OneOrMore(wanted, PhantomData))
}

/// Reads a string; `expected` says what it should hold where there is none.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err = UnitError>>(from: D, expected: &str) -> Result<T, D::Error> {
    struct Text<'e, T>(&'e str, PhantomData<T>);

    impl<T: FromStr<Err = UnitError>> de::Visitor<'_> for Text<'_, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(|error| E::custom(format_args!("{text:?} is {error}")))
        }
    }

    from.deserialize_str(Text(expected, PhantomData))
}

// === numbers ===

/// A number with a comma between thousands.
pub fn grouped(number: impl fmt::Display) -> String {
    let digits = number.to_string();
    digits.chars().enumerate().fold(String::new(), |mut text, (n, digit)| {
        text.extend((n > 0 && (digits.len() - n).is_multiple_of(3)).then_some(','));
        text.push(digit);
        text
    })
}

/// A number of things: `1 request`, `1,200 requests`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// `number` times `part` of `whole`, rounded down; 0 without a whole.
pub fn prorated(number: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(number) * u128::from(part);
    product.checked_div(u128::from(whole)).map_or(0, |quotient| u64::try_from(quotient).unwrap_or(u64::MAX))
}

/// `part` in percent of `whole`, rounded.
pub fn percent(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    u64::try_from((100 * u128::from(part) + whole / 2) / whole).unwrap_or(u64::MAX)
}

/// A time in seconds since 1970 as `20261128T235959Z`.
pub fn utc_timestamp(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.unwrap_or_default().format("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_of_bytes() {
        assert_eq!(ByteSize::mib(64).as_usize(), 64 << 20);
        assert_eq!("1025B".parse::<ByteSize>().unwrap().as_usize(), 1025);
    }

    #[test]
    fn reads_what_it_writes() {
        for text in ["64MiB", "1GiB", "3KiB", "1025B"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        for text in ["250ms", "30s", "5m", "2h", "7d"] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_not_a_whole_number_with_a_known_unit() {
        for text in ["", "64", "MiB", "1.5MiB", "-1B", "64mib", "64MiB/s", "99999999999GiB", "６４MiB"] {
            assert_eq!(text.parse::<ByteSize>(), Err(UnitError::Size), "{text:?}");
        }
        for text in ["", "30", "s", "30 parsecs", "1e3s", "30S"] {
            assert_eq!(text.parse::<Period>(), Err(UnitError::Time), "{text:?}");
        }
    }

    #[test]
    fn digits_are_grouped() {
        let groups = [0, 999, 1000, 12_345, 1_234_567].map(grouped);
        assert_eq!(groups, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn timestamps_say_when() {
        let times = [(0, "19700101T000000Z"), (951_782_399, "20000228T235959Z"), (951_782_400, "20000229T000000Z")];
        for (seconds, text) in times {
            assert_eq!(utc_timestamp(seconds), text);
        }
        assert_eq!(utc_timestamp(1_795_577_472), "20261125T033112Z");
        assert_eq!(utc_timestamp(4_107_542_400), "21000301T000000Z");
    }

    #[test]
    fn a_fraction_rounds_down() {
        let of = |part, whole| Fraction::new(part).unwrap().of(whole);
        assert_eq!([of(0.5, 7), of(1.0, 7), of(0.1, 9), of(0.8, 131_072)], [3, 7, 0, 104_857]);
        assert_eq!(of(1.0, usize::MAX), usize::MAX);
        for part in [0.0, -0.5, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Fraction::new(part), None);
        }
    }

    #[test]
    fn allows_a_space_before_the_unit() {
        assert_eq!("64 MiB".parse(), Ok(ByteSize::mib(64)));
        assert_eq!(" 30 s ".parse(), Ok(Period::secs(30)));
    }
}
