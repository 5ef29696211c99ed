//! The outline of a summary, without its text: enough to see that nearly the same was summarised before.
//!
//! A client that changes a message of the beginning with each request would otherwise have a summary made each time, and none
//! of them used.

use std::collections::HashSet;

use crate::payload::{ChainKey, Fingerprint};

/// The messages that a summary replaces, or is to replace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outline {
    /// What sets it apart from those of other callers, models and settings.
    pub scope: ChainKey,
    /// The index of the first message as it came.
    pub first: usize,
    /// How many elements the request has.
    pub n_elements: usize,
    /// How many of the messages a summary in use replaces already.
    pub n_summarised: usize,
    /// The messages.
    pub messages: Vec<OutlinedMessage>,
}

/// One message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OutlinedMessage {
    /// What it is known by.
    pub print: Fingerprint,
    /// Its tokens; not known of those that a summary replaces already.
    pub tokens: usize,
}

/// An outline with an index of its messages.
#[derive(Debug)]
pub struct IndexedOutline {
    pub(crate) outline: Outline,
    known: HashSet<Fingerprint>,
}

/// One in so many messages may be different, and the conversation may have grown by this part of its tokens.
const MAX_DIFFERENCE: usize = 10;

impl IndexedOutline {
    /// Returns what a summary was made of.
    pub fn new(outline: Outline) -> Self {
        let known = outline.messages.iter().map(|message| message.print).collect();
        Self { outline, known }
    }

    /// The index of the first message that was changed since, if what is `wanted` now is nearly the same: of the messages that no summary
    /// replaces yet one in ten may differ, and what has come after them is less than a tenth of their tokens, and less
    /// than half of the messages. Of fewer than ten, one may differ if the conversation has gone on: a summary is in
    /// use, or the request is longer. A request that is not longer is a different one from the same template. A conversation that
    /// goes another way from some message on, or that has only grown, is different.
    pub fn changed(&self, wanted: &Outline) -> Option<usize> {
        if wanted.scope != self.outline.scope {
            return None;
        }
        let new = wanted.messages.get(wanted.n_summarised..)?;
        let known: Vec<_> = new.iter().map(|message| self.known.contains(&message.print)).collect();
        let n_shared = known.iter().rposition(|known| *known)? + 1;
        let (shared, grown) = (known.get(..n_shared)?, new.get(n_shared..)?);
        let first = shared.iter().position(|known| !known)?;
        let n_changed = shared.iter().filter(|known| !**known).count();
        let tokens = |messages: &[OutlinedMessage]| messages.iter().map(|message| message.tokens).sum::<usize>();
        let has_gone_on = wanted.n_summarised > 0 || wanted.n_elements > self.outline.n_elements;
        let is_nearly_the_same = n_changed <= (new.len() / MAX_DIFFERENCE).max(usize::from(has_gone_on))
            && grown.len() <= new.len() / 2
            && tokens(grown).saturating_mul(MAX_DIFFERENCE) < tokens(new);
        is_nearly_the_same.then_some(wanted.first + wanted.n_summarised + first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each word is a message of ten tokens, or of so many: `a`, `b:300`.
    fn outline(words: &str) -> Outline {
        let message = |word: &str| {
            let (text, tokens) = word.split_once(':').unwrap_or((word, "10"));
            OutlinedMessage { print: Fingerprint::of(text.as_bytes()), tokens: tokens.parse().unwrap() }
        };
        let messages: Vec<_> = words.split_whitespace().map(message).collect();
        Outline {
            scope: ChainKey::from_bytes([1; 16]),
            first: 1,
            n_elements: messages.len() + 2,
            n_summarised: 0,
            messages,
        }
    }

    fn changed(made: &str, wanted: &Outline) -> Option<usize> {
        IndexedOutline::new(outline(made)).changed(wanted)
    }

    fn check(made: &str, wanted: &str, expected: Option<usize>) {
        assert_eq!(changed(made, &outline(wanted)), expected, "{made}\n{wanted}");
    }

    const MADE: &str = "a b c d e f g h i j k l";

    #[test]
    fn a_message_that_was_changed_is_found() {
        check(MADE, "x b c d e f g h i j k l", Some(1));
        check(MADE, "a b c D e f g h i j k l m", Some(4));
        check(MADE, "a b c d x e f g h i j k l", Some(5));
    }

    #[test]
    fn of_few_messages_one_may_be_another_in_a_conversation_that_goes_on_and_not_in_another_of_its_template() {
        for (made, wanted, changed_at) in [
            ("a b C d e", "a b c d e", 3),
            ("a:300 b c d", "x:900 b c d", 1),
            ("a b c d e f g h i", "a b c d x f g h i", 5),
        ] {
            check(made, wanted, None);
            let longer = Outline { n_elements: made.len() + 3, ..outline(wanted) };
            assert_eq!(changed(made, &longer), Some(changed_at), "{made}\n{wanted}");
        }
        let two = Outline { n_elements: 99, ..outline("x y c d e") };
        assert_eq!(changed("a b c d e", &two), None);
    }

    #[test]
    fn another_way_to_go_on_is_no_change() {
        for wanted in [MADE, "a b c d e f g h i j k l m", "a b c d e f g h i", "a b c d e f g h i x y", "x y z", ""] {
            check(MADE, wanted, None);
        }
    }

    #[test]
    fn what_is_more_than_a_tenth_another_is_another() {
        check(MADE, "x b y d e f g h i j k l", None);
        check(MADE, "x b c d e f g h i j k l m:11", Some(1));
        check(MADE, "x b c d e f g h i j k l m:14", None);
        // Two sessions that have read the same long text.
        check("a doc:9000 c d e f", "x doc:9000 y z v w", None);
    }

    #[test]
    fn what_a_summary_stands_for_already_does_not_count() {
        let wanted = |n_summarised| Outline { n_summarised, ..outline("x b c d e f g h i j k l m n") };
        assert_eq!(changed(MADE, &wanted(1)), None, "nothing is changed behind it");
        assert_eq!(changed(MADE, &wanted(0)), None, "it has grown by a seventh");
        let wanted = |n_summarised| Outline { n_summarised, ..outline("a b c d e f g h x j k l") };
        assert_eq!(changed(MADE, &wanted(4)), Some(9));
        assert_eq!(changed(MADE, &wanted(99)), None);
    }

    #[test]
    fn scopes_keep_outlines_apart() {
        let wanted = Outline { scope: ChainKey::from_bytes([2; 16]), ..outline("x b c d") };
        assert_eq!(changed("a b c d", &wanted), None);
    }
}
