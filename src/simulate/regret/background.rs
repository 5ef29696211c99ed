//! The background: units that many projects have, so that a model that writes them has not read them here.
//!
//! `background.bin` has the lower halves of their hashes, in order; `scripts/pack_background.sh` makes it.

/// The hashes, four bytes each, the lowest first.
static HASHES: &[u8] = include_bytes!("background.bin");

/// Whether a unit, by its hash, is in the background.
pub(super) fn has(unit: u64) -> bool {
    let (hashes, _) = HASHES.as_chunks::<4>();
    hashes.binary_search_by_key(&packed(unit), |bytes| u32::from_le_bytes(*bytes)).is_ok()
}

/// The part of a hash that is packed.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
pub fn packed(unit: u64) -> u32 {
    unit as u32
}

#[cfg(test)]
mod tests {
    use super::super::units::units;
    use super::*;

    #[test]
    fn common_names_are_in_the_background_and_others_are_not() {
        let has = |text: &str| units(text).all(|unit| has(unit.hash()));
        for common in ["package.json", "README.md", "__init__.py", "toString", "Cargo.toml"] {
            assert!(has(common), "{common}");
        }
        for rare in ["strange_name_of_nobody", "aVeryStrangeName", "zzz_unheard.rs"] {
            assert!(!has(rare), "{rare}");
        }
    }

    #[test]
    fn the_hashes_are_in_order_and_take_64_kib_at_most() {
        let (hashes, rest) = HASHES.as_chunks::<4>();
        assert!(rest.is_empty() && HASHES.len() <= 64 << 10);
        assert!(hashes.is_sorted_by_key(|bytes| u32::from_le_bytes(*bytes)));
    }
}
