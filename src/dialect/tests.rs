//! Helpers for the tests of all dialects.

pub(super) mod by_serde;

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::{ParseError, strings};
use crate::conversation::Conversation;

/// What holds for any bytes: a body whose strings are valid is read as `serde_json` reads it, or refused by both; one whose
/// strings are not is not valid JSON.
pub(super) fn agrees(
    read: Result<Conversation<'_>, ParseError>,
    by_serde: Result<Conversation<'_>, ParseError>,
    body: &[u8],
) -> Result<(), TestCaseError> {
    match (read, by_serde) {
        (Ok(read), Ok(expected)) => {
            prop_assert_eq!(read, expected);
            prop_assert!(strings::verify(body).is_ok());
        }
        (Ok(_), Err(_)) => prop_assert!(strings::verify(body).is_err()),
        (Err(error), Ok(_)) => prop_assert!(false, "{} {}", error, String::from_utf8_lossy(body)),
        (Err(_), Err(_)) => {}
    }
    Ok(())
}
