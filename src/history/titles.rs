//! The titles of the most recent conversations: the first words of the user, where `[inspect]` allows content.

use std::collections::VecDeque;

use super::MAX_ENTRIES;
use crate::payload::ChainKey;

/// Titles by conversation, oldest first.
#[derive(Debug, Default)]
pub(super) struct Titles(VecDeque<(ChainKey, String)>);

impl Titles {
    pub(super) fn push(&mut self, conversation: ChainKey, title: String) {
        self.0.retain(|(known, _)| *known != conversation);
        if self.0.len() == MAX_ENTRIES {
            self.0.pop_front();
        }
        self.0.push_back((conversation, title));
    }

    pub(super) fn get(&self, conversation: Option<ChainKey>) -> Option<String> {
        let (_, title) = self.0.iter().rev().find(|(known, _)| Some(*known) == conversation)?;
        Some(title.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_bounded_and_the_last_one_counts() {
        let key = |n: usize| ChainKey::from_bytes((n as u128).to_be_bytes());
        let mut titles = Titles::default();
        titles.push(key(0), "old".to_owned());
        for n in 0..MAX_ENTRIES {
            titles.push(key(n), n.to_string());
        }
        assert_eq!((titles.get(Some(key(0))).as_deref(), titles.get(None)), (Some("0"), None));
        titles.push(key(MAX_ENTRIES), String::new());
        assert_eq!((titles.get(Some(key(0))), titles.0.len()), (None, MAX_ENTRIES));
    }
}
