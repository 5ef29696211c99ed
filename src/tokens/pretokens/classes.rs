//! The classes of characters, by the general categories of Unicode.
//!
//! `classes.bin` has the places where they change; `scripts/char_classes.py` makes it.

const PACKED: &[u8] = include_bytes!("classes.bin");

/// Where the class changes: the first character, shifted by eight bits, and the bit of the class from there on.
pub(in crate::tokens) const CHANGES: [u32; PACKED.len() / 4] = changes();

#[expect(clippy::indexing_slicing, reason = "the compiler evaluates it")]
const fn changes() -> [u32; PACKED.len() / 4] {
    let (packed, _) = PACKED.as_chunks();
    let (mut changes, mut n) = ([0; _], 0);
    while n < changes.len() {
        changes[n] = u32::from_le_bytes(packed[n]);
        n += 1;
    }
    changes
}
