//! Whatever the row of a store holds, it is read as it was written, or not at all; and no length in it is believed.
//!
//! The first byte is an encoding, the next four are a length and the place of a bit; the rest is a payload.

use abridge_proxy::payload::{MediaType, Payload};
use abridge_proxy::store::tests::conformance::damage::{forged_row, read_row, row};
use bytes::Bytes;

/// Reads rows.
pub fn run(input: &[u8]) {
    let _nothing_is_known_of_it = read_row(input);
    let Some((encoding, rest)) = input.split_first() else { return };
    let Some((number, bytes)) = rest.split_first_chunk() else { return };
    let number = u32::from_le_bytes(*number);
    let bytes = Bytes::copy_from_slice(bytes);
    let payload = Payload::stored(bytes.clone(), MediaType::from_code(*encoding));
    let whole = row(&payload);
    assert_eq!(read_row(&whole).as_ref(), Some(&payload));

    let mut damaged = whole.clone();
    let bit = number as usize % (8 * damaged.len());
    damaged[bit / 8] ^= 1 << (bit % 8);
    assert_eq!(read_row(&damaged), None, "one bit is wrong");
    assert_eq!(read_row(&whole[..number as usize % whole.len()]), None, "it is cut");

    // Its checksum is right, and what it says of itself is not.
    let lie = forged_row(&whole, *encoding, Some(u64::from(number) << (number % 33)));
    if let Some(read) = read_row(&lie) {
        assert!(read.len() <= 1 << 31, "a length is believed");
    }
    // The payload as the compressed body of a row.
    let compressed = forged_row(&row(&bytes.into()), 1, Some(number.into()));
    if let Some(read) = read_row(&compressed) {
        assert_eq!(read.len(), number as usize);
    }
}
