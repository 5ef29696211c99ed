//! Remembers what recent summaries were made from, so that a client that changes a message at the beginning with each
//! request does not cause a new summary each time.

use std::collections::VecDeque;

use crate::held::Held;
use crate::summary::{IndexedOutline, Outline};

/// The most recent summaries. They are not in the store: after a restart, one more summary is made.
#[derive(Debug, Default)]
pub(super) struct RecentSummaries {
    made: Held<VecDeque<Recent>>,
}

#[derive(Debug)]
struct Recent {
    made: IndexedOutline,
    /// Whether the log already says that one of its messages changes.
    is_logged: bool,
}

/// How many messages, and how many summaries, are remembered; together about 4 MB.
const MAX_MESSAGES: usize = 16_384;
const MAX_SUMMARIES: usize = 64;

impl RecentSummaries {
    /// Remembers what a summary was made from.
    pub(super) fn note(&self, outline: Outline) {
        let new = Recent { made: IndexedOutline::new(outline), is_logged: false };
        let mut left = MAX_MESSAGES;
        let fits = |recent: &Recent| {
            let n_messages = recent.made.outline.messages.len();
            let fits = n_messages <= left;
            left = left.saturating_sub(n_messages);
            fits
        };
        self.made.with(|recent| {
            recent.push_front(new);
            let n_kept = recent.iter().take(MAX_SUMMARIES).map(fits).take_while(|fits| *fits).count();
            recent.truncate(n_kept);
        });
    }

    /// Whether a recent summary was made from nearly the same messages, some of which have changed since. Logs the
    /// first such change.
    pub(super) fn has_similar(&self, wanted: &Outline) -> bool {
        let found = self.made.with(|recent| {
            let mut found = recent.iter_mut().filter_map(|recent| Some((recent.made.changed(wanted)?, recent)));
            found.next().map(|(changed, recent)| (changed, std::mem::replace(&mut recent.is_logged, true)))
        });
        let Some((changed, is_logged)) = found else { return false };
        if !is_logged {
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
    use crate::summary::OutlinedMessage;

    /// Twenty messages; the first one says `first`.
    fn outline(scope: u8, first: usize) -> Outline {
        let message =
            |n| OutlinedMessage { fields: vec![("content".into(), Fingerprint::of_numbers(n, 0))], tokens: 9 };
        let messages = [first].into_iter().chain(101..120).map(message).collect();
        Outline { scope: ChainKey::from_bytes([scope; 16]), first: 0, n_elements: 20, n_summarised: 0, messages }
    }

    #[test]
    fn only_the_most_recent_summaries_are_remembered() {
        let recent = RecentSummaries::default();
        assert!(!recent.has_similar(&outline(0, 2)));
        for scope in 0..100 {
            recent.note(outline(scope, 1));
            assert!(recent.has_similar(&outline(scope, 2)) && !recent.has_similar(&outline(scope, 1)));
        }
        let n_known = (0..100).filter(|scope| recent.has_similar(&outline(*scope, 2))).count();
        assert_eq!(n_known, MAX_SUMMARIES);
        let long = Outline { messages: vec![outline(200, 1).messages; MAX_MESSAGES / 20].concat(), ..outline(200, 1) };
        recent.note(long);
        assert!((0..100).all(|scope| !recent.has_similar(&outline(scope, 2))), "there is no room for others");
    }
}
