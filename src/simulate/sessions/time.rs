//! Moments as session files write them.

use crate::units::day_of_date;

/// The seconds since 1970 of a moment in UTC, as `2026-01-31T12:00:00.5Z`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let day = day_of_date(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    i64::try_from(day * 86_400 + hour * 3600 + minute * 60 + second).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_seconds_since_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T23:59:59.999Z", Some(951_868_799)),
            ("2026-11-25T22:46:00Z", Some(1_795_646_760)),
            ("2026-13-25T22:46:00Z", None),
            ("2026-11-25", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
