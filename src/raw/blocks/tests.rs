//! What blocks find, a look at each byte finds, too.

use proptest::prelude::*;

use super::*;

/// The bytes that a backslash precedes, found one after the other.
fn escaped_one_by_one(bytes: &[u8]) -> Vec<usize> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] == b'\\' {
            at += 1;
            found.push(at);
        }
        at += 1;
    }
    found
}

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let escaped = escaped_one_by_one(bytes);
    let mut found = Vec::new();
    let none = find_escaped(bytes, |at| {
        found.push(at);
        true
    });
    prop_assert_eq!((none, &found), (None, &escaped), "{:?}", bytes);
    prop_assert_eq!(find_escaped(bytes, |_| false), escaped.first().copied(), "{:?}", bytes);
    let ends = |(at, byte): (usize, &u8)| (*byte == b'"' && !escaped.contains(&at)).then_some(at);
    let first = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    let is_near = |at: &usize| bytes[*at] == b'"' && at / LANE < NEAR_LANES.min(bytes.len() / LANE);
    prop_assert_eq!(near_closing_quote(bytes), first.filter(is_near), "{:?}", bytes);
    prop_assert_eq!(closing_quote(bytes), bytes.iter().enumerate().find_map(ends), "{:?}", bytes);
    let first = bytes.iter().position(|byte| *byte < 0x20);
    prop_assert_eq!(control(bytes), first.map(|at| at - at % BLOCK), "{:?}", bytes);
    Ok(())
}

proptest! {
    #[test]
    fn blocks_find_what_a_look_at_each_byte_finds(
        pieces in prop::collection::vec(
            prop_oneof![
                // High bits and neighbours of what is looked for.
                4 => prop::sample::select(&[b'!', b'#', b'[', b']', 0xa2, 0xdc, 0x20, 0x7f, 0x9f, 0xff][..])
                    .prop_flat_map(|byte| (0..150_usize).prop_map(move |n| vec![byte; n])),
                3 => (0..140_usize).prop_map(|n| vec![b'\\'; n]),
                2 => Just(vec![b'\\', b'"']),
                1 => Just(vec![b'"']),
                1 => (0..0x20_u8).prop_map(|control| vec![control]),
                // Long enough that `memchr` goes on.
                1 => (250..700_usize).prop_map(|n| vec![b'x'; n]),
            ],
            0..8,
        ),
    ) {
        check(&pieces.concat())?;
    }
}

#[test]
fn an_escape_is_found_wherever_blocks_and_lanes_meet() {
    for length in 0..200 {
        for run in 0..=length.min(4) {
            for at in 0..=length - run {
                let mut bytes = vec![b'a'; length];
                bytes[at..at + run].fill(b'\\');
                bytes.extend(b"\"\"");
                check(&bytes).unwrap();
            }
        }
    }
}
