//! Moments as session files write them.

/// The seconds since 1970 of a moment in UTC, as `2026-01-31T12:00:00.5Z`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let time = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days of a civil date, counted from 1 March of the year 0.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + time.0 * 3600 + time.1 * 60 + time.2)
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
