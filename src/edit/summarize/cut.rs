//! Where a conversation is cut: before the cut it is summarised, after it everything stays as it is.

use crate::conversation::{Role, TurnUnit, UnitIndex, unread_from};
use crate::draft::{Draft, Row};
use crate::edit::trigger::Keep;

/// The places where a conversation may be parted. A place is the row after it.
pub(super) struct CutPoints<'c> {
    pub(super) rows: &'c [Row],
    /// The tokens of each row.
    pub(super) tokens: &'c [usize],
    /// Whether a row opens a turn of the model that calls.
    rounds: Vec<bool>,
    /// Whether the conversation may be parted before a row.
    allowed: Vec<bool>,
    /// The first row that could be summarised.
    pub(super) first: usize,
    /// The last place: after it is what the model has not read.
    last: usize,
    /// The first row that no summary replaces yet.
    pub(super) first_new: usize,
    /// The row that is a summary already.
    summary: Option<usize>,
    /// The rows that are sent after the summary that replaces what is before them: they follow the user.
    following: Vec<usize>,
    /// The first unit that has been read and that no summary may replace.
    pub(super) blocking: Option<UnitIndex>,
}

impl<'c> CutPoints<'c> {
    /// `is_own` says of a unit of the user whether it holds a summary that came back as a message.
    pub(super) fn new(
        draft: &Draft<'_>,
        rows: &'c [Row],
        tokens: &'c [usize],
        is_own: impl Fn(UnitIndex) -> bool,
    ) -> Self {
        let turn_units = draft.turn_units(rows);
        let is_summary = |row: &Row| {
            row.unit.is_some_and(|unit| Some(unit) == draft.summarised() || row.role == Role::User && is_own(unit))
        };
        let summary = rows.iter().rposition(is_summary);
        let folded = rows.iter().rposition(|row| row.unit.is_some_and(|unit| draft.is_folded(unit)));
        let (unread, read_end) = if draft.summarises_all() {
            (rows.len(), usize::MAX)
        } else {
            (unread_from(turn_units.iter().copied()), unread_from(draft.whole().conversation.turn_units()))
        };
        let first = rows.iter().take_while(|row| row.unit.is_some_and(|unit| unit < draft.first_editable)).count();
        let flags = |row: &Row| row.unit.and_then(|unit| draft.conversation.unit(unit)).map(|unit| unit.flags);
        let follows = |row: &Row| flags(row).is_some_and(|flags| flags.follows_user);
        let stays = |row: &Row| flags(row).is_some_and(|flags| flags.stays && !flags.follows_user);
        let stays = rows.iter().skip(first).position(stays).map_or(rows.len(), |n| first + n);
        let allowed = allowed(draft, rows, &turn_units);
        // A result that came late is unread where it came, wherever it has been moved to.
        let was_read = |place: usize| {
            let next = rows.get(place).map_or(Some(draft.conversation.next_unit()), |row| row.unit);
            next.is_none_or(|next| draft.original_unit(next).get() <= read_end)
        };
        let may_be_last = |place: &usize| allowed.get(*place) == Some(&true) && was_read(*place);
        Self {
            rows,
            tokens,
            rounds: rounds(&turn_units),
            first,
            last: (0..=unread.min(stays)).rev().find(may_be_last).unwrap_or_default(),
            first_new: folded.max(summary).map_or(first, |last| last + 1),
            summary,
            following: (first..rows.len()).filter(|row| rows.get(*row).is_some_and(follows)).collect(),
            blocking: rows.get(stays).filter(|_| stays < unread).and_then(|row| row.unit),
            allowed,
        }
    }

    /// Whether the conversation may be parted here.
    pub(super) fn may_part(&self, place: usize) -> bool {
        self.allowed.get(place) == Some(&true)
    }

    /// The place before a message, if there is one and what is after it may be kept.
    pub(super) fn before(&self, unit: UnitIndex) -> Option<usize> {
        let place = self.rows.iter().position(|row| row.unit.is_some_and(|index| index >= unit))?;
        (place <= self.last && place > self.first_new && self.may_part(place)).then_some(place)
    }

    /// The last place, if there is something new before it.
    pub(super) fn last(&self) -> Option<usize> {
        (self.last > self.first_new).then_some(self.last)
    }

    /// The place that leaves after it what is to be kept; none if nothing would be before it.
    pub(super) fn place(&self, keep: Keep) -> Option<usize> {
        let user = |row: &Row| row.role == Role::User && row.unit.is_some();
        let user = self.rows.iter().rposition(user).filter(|&row| Some(row) != self.summary);
        let user = user.map(|user| self.element_start(user));
        let kept = self.kept_from(keep);
        let place = match user {
            Some(user) if user >= self.last => self.last,
            Some(user) if user >= kept && self.may_part(user) => user,
            _ => self.round_from(kept),
        };
        // A message of the user replaces what is before the cut: so that one of the model comes between two of them.
        let place = match place.checked_sub(1) {
            Some(before) if self.is_answer(before) && !self.is_of_model(place) => before,
            _ => place,
        };
        (self.first_new + 1..=place).rev().find(|place| self.leaves_following(*place))
    }

    /// Whether what follows the user is between a summary and the model, if the conversation is parted here.
    fn leaves_following(&self, place: usize) -> bool {
        let has_none = self.following.first().is_none_or(|first| place <= *first);
        has_none || (self.ends_following(place) && (self.follows(place) || self.is_of_model(place)))
    }

    /// Whether what is before a row may be left out alone: the row does not follow the user, nor one that does.
    pub(super) fn may_open(&self, row: usize) -> bool {
        self.ends_following(row) && !self.follows(row)
    }

    /// Whether the conversation may be parted here, and no row before the place has to be with one after it.
    fn ends_following(&self, row: usize) -> bool {
        self.may_part(row) && !row.checked_sub(1).is_some_and(|before| self.follows(before))
    }

    fn follows(&self, row: usize) -> bool {
        self.following.binary_search(&row).is_ok()
    }

    /// The first row of what may be kept: what the model has read after it is no more than that.
    fn kept_from(&self, keep: Keep) -> usize {
        let (Keep::Results(mut left) | Keep::Rounds(mut left) | Keep::Tokens(mut left)) = keep else {
            return self.last; // resolved before
        };
        let size = |row: usize| match keep {
            Keep::Results(_) => self.rows.get(row).map(|row| usize::from(row.role == Role::Tool)),
            Keep::Rounds(_) => Some(usize::from(self.opens_round(row))),
            _ => self.tokens.get(row).copied(),
        };
        let kept = (0..self.last).rev().map_while(|row| {
            left = left.checked_sub(size(row)?)?;
            Some(row)
        });
        kept.last().unwrap_or(self.last)
    }

    fn opens_round(&self, row: usize) -> bool {
        self.rounds.get(row) == Some(&true)
    }

    /// The first place from a row on that has a round after it.
    fn round_from(&self, row: usize) -> usize {
        (row..self.last).find(|place| self.opens_round(*place) && self.may_part(*place)).unwrap_or(self.last)
    }

    /// Whether a row is a message of the model without calls, which the conversation may be parted before.
    fn is_answer(&self, row: usize) -> bool {
        self.is_of_model(row) && !self.opens_round(row) && self.may_part(row)
    }

    pub(super) fn is_of_model(&self, row: usize) -> bool {
        self.rows.get(row).is_some_and(|row| row.role == Role::Assistant)
    }

    /// The first row of the element that a row is in.
    fn element_start(&self, row: usize) -> usize {
        let element = self.rows.get(row).map(|row| row.element);
        let before = self.rows.get(..row).unwrap_or_default().iter().rev();
        row - before.take_while(|row| Some(row.element) == element).count()
    }
}

/// Of each row, whether it opens a turn of the model that calls.
fn rounds(turn_units: &[TurnUnit]) -> Vec<bool> {
    let mut rounds = vec![false; turn_units.len()];
    let mut opened = None;
    for (n, row) in turn_units.iter().enumerate() {
        if !row.continues {
            opened = Some(n).filter(|_| row.role == Role::Assistant);
        }
        if let Some(round) = opened.filter(|_| row.calls).and_then(|n| rounds.get_mut(n)) {
            *round = true;
        }
    }
    rounds
}

/// Whether the conversation may be parted before each row: no element, no turn of the model, no program and no result from
/// its call is parted, nothing inserted begins what stays, and what is before the place came before what is after it.
fn allowed(draft: &Draft<'_>, rows: &[Row], turn_units: &[TurnUnit]) -> Vec<bool> {
    // The round of a further result is reopened beside the summary.
    let caller = |row: &Row| draft.conversation.caller(row.call.filter(|_| !draft.is_further(row))?);
    // How far back the rows from here on reach, as indices of units.
    let mut reaches = draft.conversation.next_unit();
    let mut from: Vec<UnitIndex> = rows
        .iter()
        .rev()
        .map(|row| {
            let reach = row.unit.into_iter().chain(caller(row)).min();
            reaches = reach.map_or(reaches, |reach| reaches.min(reach));
            reaches
        })
        .collect();
    from.reverse();
    let (mut newest, mut before) = (None, None);
    let places = rows.iter().zip(turn_units).zip(from).map(|((row, turn_units), from)| {
        let in_program =
            row.unit.and_then(|unit| draft.conversation.unit(unit)).is_some_and(|unit| unit.flags.in_program);
        let parts_nothing = row.role != Role::Tool
            && row.unit.is_some()
            && !turn_units.continues
            && !in_program
            && before != Some(row.element);
        let allowed = parts_nothing && newest.is_none_or(|newest| newest < from);
        newest = newest.max(row.unit);
        before = Some(row.element);
        allowed
    });
    // Nothing is parted at the end.
    places.chain([true]).collect()
}
