//! Results that are put behind units.

use bytes::Bytes;

use super::journal::ChangeId;
use crate::conversation::{BlockIndex, UnitIndex};

/// A result that is put behind a unit.
#[derive(Debug)]
pub(super) struct Insertion {
    /// The unit that it is put behind, which may itself have left.
    pub(super) behind: UnitIndex,
    pub(super) what: InsertedResult,
    /// The change that says so.
    pub(super) change: ChangeId,
    /// Whether it has been dropped again.
    pub(super) gone: bool,
}

#[derive(Debug)]
pub(super) enum InsertedResult {
    /// A result that stood elsewhere, and what stands for it where it has not come yet.
    Moved { unit: UnitIndex, until_then: Bytes },
    /// A result that was not there, which answers the call of a block.
    New { call: BlockIndex, bytes: Bytes },
}
