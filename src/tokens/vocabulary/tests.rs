//! tiktoken-rs is the reference: token for token, for each encoding.

use proptest::prelude::*;
use tiktoken_rs::CoreBPE;

use super::*;
use crate::tokens::pretokens::classes::CHANGES;

fn all() -> [(&'static str, &'static Vocabulary, &'static CoreBPE); 2] {
    [
        ("o200k_base", &O200K_BASE, tiktoken_rs::o200k_base_singleton()),
        ("cl100k_base", &CL100K_BASE, tiktoken_rs::cl100k_base_singleton()),
    ]
}

impl Vocabulary {
    /// The tokens that a text is.
    fn encode(&self, text: &str) -> Vec<Vec<u8>> {
        let mut tokens = Vec::new();
        for (rest, length) in self.pretokens(text) {
            let pretoken = &rest.as_bytes()[..length];
            if self.place(pretoken, length).is_some() {
                tokens.push(pretoken.to_vec());
            } else {
                let rank = |start, end| self.place(&pretoken[start..], end - start);
                tokens.extend(Merge::default().tokens(pretoken, rank).into_iter().map(<[u8]>::to_vec));
            }
        }
        tokens
    }
}

/// Fails where a text has other tokens than tiktoken-rs finds.
fn assert_same(text: &str) {
    for (name, ours, theirs) in all() {
        let theirs = theirs.encode_ordinary(text).into_iter().map(|rank| theirs.decode_bytes(&[rank]).unwrap());
        let encoded = ours.encode(text);
        assert_eq!(ours.count(text), encoded.len(), "{name}: {text:?}");
        assert_eq!(encoded, theirs.collect::<Vec<_>>(), "{name}: {text:?}");
    }
}

/// The tokens of tiktoken-rs in the order of their ranks; its control tokens, which follow them, are none.
fn list(vocabulary: &CoreBPE) -> Vec<Vec<u8>> {
    let special = vocabulary.special_tokens();
    let token = |rank| vocabulary.decode_bytes(&[rank]).unwrap_or_default();
    let is_special = |token: &[u8]| std::str::from_utf8(token).is_ok_and(|text| special.contains(text));
    let mut list: Vec<_> =
        (0..201_100).map(token).map(|token| if is_special(&token) { Vec::new() } else { token }).collect();
    while list.pop_if(|token| token.is_empty()).is_some() {}
    list
}

#[test]
fn the_tokens_are_those_of_tiktoken_in_the_order_of_their_ranks() {
    for (name, ours, theirs) in all() {
        let mut place = 0;
        for token in list(theirs) {
            assert!(token.is_empty() || ours.place(&token, token.len()) == Some(place), "{name}: {token:?}");
            place += 1 + u32::try_from(token.len()).unwrap();
        }
        assert_eq!(ours.tokens.len(), place as usize, "{name}");
    }
}

#[test]
fn the_largest_vocabulary_takes_4_mb() {
    let Vocabulary { tokens, slots, .. } = &*O200K_BASE;
    let bytes = tokens.len() + 4 * slots.len();
    assert!(bytes < 4_000_000, "{bytes}");
    assert!(tokens.len() < PLACE as usize, "a place is another one, or none");
}

#[test]
fn prose_and_code_have_the_tokens_of_tiktoken() {
    assert_same("I'LL say: it's 12345 o'clock -- naïve\u{a0}世界!\r\n\r\n  let x=[1,\t2];   \n\n\u{1f600}/end  ");
    assert_same(include_str!("../vocabulary.rs"));
    assert_same(include_str!("../../../ARCHITECTURE.md"));
    assert_same(include_str!("../../../Cargo.lock"));
}

#[test]
fn each_character_has_the_class_that_tiktoken_gives_it() {
    // The first characters, and of the others the first and the last of each class.
    let changes = CHANGES.iter().map(|change| change >> 8).flat_map(|first| [first.saturating_sub(1), first]);
    let characters: Vec<char> = (0..0x3400).chain(changes).filter_map(char::from_u32).collect();
    for characters in characters.chunks(64) {
        let around = |c| format!("xC{c}y{c}{c}Z1{c}2 {c}{c}\n");
        assert_same(&characters.iter().map(around).collect::<Vec<_>>().concat());
    }
}

#[test]
fn long_runs_have_the_tokens_of_tiktoken() {
    for unit in
        ["a", "A", "ab", " ", "\n", "\t\n", "7", "=", "'s", "Aa", "é", "字", "字A", "\u{301}", "e\u{301}", "😀", "\\\""]
    {
        for n in [2, 3, 20, 63, 64, 65, 127, 128, 129, 500] {
            assert_same(&unit.repeat(n));
            assert_same(&format!(" {}!", unit.repeat(n)));
        }
    }
}

/// What texts are put together of: each kind of character that a pattern tells from others, and words.
fn fragment() -> impl Strategy<Value = String> {
    const FRAGMENTS: &str = concat!(
        " |  |\t|\n|\r\n|\n\n|\r|\u{a0}|\u{3000}|\u{85}|\u{2028}|\u{b}|'|'s|'S|'ll|'Ll|'LL|'re|'vE|'d|'m|'t|'ſ|'K|ſ|",
        "a|b|the|Hello|XMLHttp|getId|A|Z|ǅ|ʰ|ª|ß|é|É|ı|中|中文|こ|ن|א|ไ|한|\u{301}|\u{5b0}|\u{20dd}|\u{200d}|\u{fe0f}|😀|👩\u{200d}🚀|",
        "1|23|4567|²|Ⅷ|٣|½|/|//|-|_|(|);|{\"|\\n|\u{0}|\u{1b}[0m|\u{7f}|\u{fffd}|\u{feff}|\u{e000}",
    );
    let fragments: Vec<_> = FRAGMENTS.split('|').collect();
    prop_oneof![
        8 => prop::sample::select(fragments).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => "[a-zA-Z]{1,12}",
        1 => "[0-9a-f]{8,40}",
        1 => "[ \t\r\n]{1,6}",
        1 => "[A-Za-z0-9+/]{20,200}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_text_has_the_tokens_of_tiktoken(fragments in prop::collection::vec(fragment(), 0..24)) {
        assert_same(&fragments.concat());
    }
}
