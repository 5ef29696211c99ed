//! Whatever a body says of its encoding, it is decoded within its limit and the budget or not at all.
//!
//! The first byte is the coding, the next two are the limit; the rest is the body.

use abridge_proxy::body::Budget;
use abridge_proxy::body::encoding::{ContentCoding, DecodeError};

/// More than a window of 16 MiB and what is decoded take.
const BUDGET: usize = 32 << 20;

/// Decodes a body twice.
pub fn run(input: &[u8]) {
    let [coding, low, high, body @ ..] = input else { return };
    let coding = match coding % 4 {
        0 => ContentCoding::Gzip,
        1 => ContentCoding::Deflate,
        2 => ContentCoding::Brotli,
        _ => ContentCoding::Zstd,
    };
    let limit = usize::from(u16::from_le_bytes([*low, *high]));
    let budget = Budget::new(BUDGET);
    match coding.decode(body, limit, &budget) {
        Ok(decoded) => {
            assert!(decoded.len() <= limit, "more than the limit");
            // A body that is not a zlib stream is tried as a raw one, unless it reaches the limit first.
            if coding != ContentCoding::Deflate {
                let exact = coding.decode(body, decoded.len(), &budget).expect("it fits");
                assert_eq!(exact, decoded);
            }
            if let Some(less) = decoded.len().checked_sub(1) {
                assert!(
                    matches!(coding.decode(body, less, &budget), Err(DecodeError::TooLong { .. })),
                    "it does not fit"
                );
            }
        }
        Err(DecodeError::TooLong { limit: said }) => assert_eq!(said, limit),
        Err(DecodeError::NoBudget { needed }) => assert!(needed > BUDGET, "{needed} bytes fit"),
        Err(DecodeError::Broken(_)) => {}
    }
    assert_eq!(budget.used(), 0, "a lease is left");
}
