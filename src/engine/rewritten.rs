//! What summaries were made of lately, so that a client that changes a message of the beginning with each request does not have
//! one made each time.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::summary::{Made, Outline};

/// The last ones. They are not in the store: after a restart, one more is made.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "held for some microseconds, never across an await")]
pub(super) struct Rewritten {
    made: std::sync::Mutex<VecDeque<Noted>>,
}

#[derive(Debug)]
struct Noted {
    made: Made,
    /// Whether the log has it that messages of it change.
    told: bool,
}

/// How many messages of how many summaries are remembered, in some 4 MB.
const MOST_MESSAGES: usize = 16_384;
const MOST: usize = 64;

impl Rewritten {
    /// Remembers what a summary was made of.
    pub(super) fn note(&self, outline: Outline) {
        let mut noted = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        noted.push_front(Noted { made: Made::new(outline), told: false });
        let mut left = MOST_MESSAGES;
        let fits = |noted: &Noted| {
            let n_messages = noted.made.n_messages();
            let fits = n_messages <= left;
            left = left.saturating_sub(n_messages);
            fits
        };
        let n_kept = noted.iter().take(MOST).map(fits).take_while(|fits| *fits).count();
        noted.truncate(n_kept);
    }

    /// Whether nearly the same was summarised before, but for messages that were changed since. The log says which, once.
    pub(super) fn is_nearly(&self, wanted: &Outline) -> bool {
        let mut noted = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let found = noted.iter_mut().find_map(|noted| Some((noted.made.changed(wanted)?, &mut noted.told)));
        let Some((changed, told)) = found else { return false };
        if !std::mem::replace(told, true) {
            tracing::warn!(
                index = changed.message,
                field = changed.field.as_deref(),
                "no summary is made: the client has changed a message that the last one stands for, and little else is new"
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{ChainKey, Fingerprint};
    use crate::summary::Outlined;

    /// Twenty messages; the first one says `first`.
    fn outline(scope: u8, first: usize) -> Outline {
        let message = |n| Outlined { fields: vec![("content".into(), Fingerprint::of_numbers(n, 0))], tokens: 9 };
        let messages = [first].into_iter().chain(101..120).map(message).collect();
        Outline { scope: ChainKey::from_bytes([scope; 16]), first: 0, n_summarised: 0, messages }
    }

    #[test]
    fn the_last_ones_are_remembered_and_no_more() {
        let rewritten = Rewritten::default();
        assert!(!rewritten.is_nearly(&outline(0, 2)));
        for scope in 0..100 {
            rewritten.note(outline(scope, 1));
            assert!(rewritten.is_nearly(&outline(scope, 2)) && !rewritten.is_nearly(&outline(scope, 1)));
        }
        let n_known = (0..100).filter(|scope| rewritten.is_nearly(&outline(*scope, 2))).count();
        assert_eq!(n_known, MOST);
        let long = Outline { messages: vec![outline(200, 1).messages; MOST_MESSAGES / 20].concat(), ..outline(200, 1) };
        rewritten.note(long);
        assert!((0..100).all(|scope| !rewritten.is_nearly(&outline(scope, 2))), "there is no room for others");
    }
}
