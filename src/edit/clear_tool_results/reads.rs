//! Which of the newest file reads still say what is in their files.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;

use crate::{draft::RowIndex, edit::file_use::FileUse};

/// The file reads of a conversation as it grows. Results have the numbers of the timeline. A read that is not kept any more
/// is never kept again.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// How many of the newest reads are kept, if nothing has happened to their files.
    most: usize,
    newest: VecDeque<RowIndex>,
    /// The reads whose files nothing has happened to, by file and by the part that was read.
    live: HashMap<String, HashMap<Option<String>, Vec<RowIndex>>>,
    /// The others, and what has happened to their files.
    pub(super) stale: BTreeMap<RowIndex, &'static str>,
    /// Those that would be cleared if they were not kept.
    held: BTreeSet<RowIndex>,
    /// Those that were held, and are not kept any more.
    pub(super) released: Vec<RowIndex>,
}

impl Reads {
    /// Before any result has come.
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// The result of a call came that does something with files.
    pub(super) fn came(&mut self, number: RowIndex, file_use: FileUse) {
        match file_use {
            FileUse::Edit(paths) => {
                for path in paths {
                    let reads = self.live.remove(&path).into_iter().flatten();
                    reads.for_each(|(_, reads)| self.go_stale(reads, "edited since"));
                }
            }
            FileUse::Read { path, part } => {
                let parts = self.live.entry(path).or_default();
                let before: Vec<_> = match &part {
                    Some(_) => parts.remove(&part).unwrap_or_default(),
                    None => parts.drain().flat_map(|(_, reads)| reads).collect(),
                };
                parts.insert(part, vec![number]);
                self.go_stale(before, "read again");
                self.newest.push_back(number);
                if self.newest.len() > self.most
                    && let Some(oldest) = self.newest.pop_front()
                {
                    self.release(oldest);
                }
            }
        }
    }

    /// Whether a result that would be cleared is kept. It is held until that ends.
    pub(super) fn hold(&mut self, number: RowIndex) -> bool {
        let is_kept = self.newest.binary_search(&number).is_ok() && !self.stale.contains_key(&number);
        if is_kept {
            self.held.insert(number);
        }
        is_kept
    }

    /// Keeps no more reads that would be cleared.
    pub(super) fn let_go(&mut self) {
        self.released.extend(mem::take(&mut self.held));
    }

    fn go_stale(&mut self, numbers: Vec<RowIndex>, why: &'static str) {
        for number in numbers {
            self.stale.insert(number, why);
            self.release(number);
        }
    }

    fn release(&mut self, number: RowIndex) {
        if self.held.remove(&number) {
            self.released.push(number);
        }
    }
}
