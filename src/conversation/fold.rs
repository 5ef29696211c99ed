//! Which of the units that a summary replaces stay beside it, and the view of the conversation that results.
//!
//! A result may come after a summary was made that replaces its call. Its round is then reopened: the turn that calls, and
//! the results of that turn among those summarised, are sent as they came, so that the late result has its call. Elements
//! stay whole: what is in one with a unit that stays, stays too. Units that follow the user stay after the summary.
//! Rounds that make tools known stay beside it: without them the model could no longer call the tools.

use std::{collections::BTreeSet, ops::Range};

use super::{CallIndex, Conversation, Element, ElementIndex, Flags, Pairing, Role, Unit, UnitIndex};

/// Units that one element represents, except for those that stay beside it. They begin and end with elements.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fold {
    /// The units as they came, those that stay among them.
    pub units: Range<UnitIndex>,
    /// The stretches that are not sent, in order.
    hidden: Vec<Range<UnitIndex>>,
    /// The one of them that the summary takes the place of.
    place: Range<UnitIndex>,
    /// Which of the units have an index in the view, in order: those that stay, and the first of `place`.
    standing: Vec<UnitIndex>,
}

impl Fold {
    /// The fold of some units of a conversation. None if there is nothing left for a summary to replace, or nothing of it
    /// before a unit that follows the user.
    pub fn of(conversation: &Conversation<'_>, pairing: &Pairing, units: Range<UnitIndex>) -> Option<Self> {
        let mut standing = reopened(conversation, pairing, &units);
        let follows = |unit: &UnitIndex| conversation.unit(*unit).is_some_and(|unit| unit.flags.follows_user);
        let following: Vec<_> = UnitIndex::each(&units).filter(follows).collect();
        standing.extend(&following);
        let (mut hidden, mut from) = (Vec::new(), units.start);
        for end in standing.iter().copied().chain([units.end]) {
            if from < end {
                hidden.push(from..end);
            }
            from = end.next();
        }
        // In the view, nothing may part a result without an id from the call directly before it.
        let parts_no_run =
            |stretch: &&Range<UnitIndex>| conversation.unit_range(stretch).iter().any(|unit| unit.role != Role::Tool);
        let place = hidden.iter().find(parts_no_run)?.clone();
        if following.first().is_some_and(|first| *first < place.start) {
            return None;
        }
        standing.insert(place.start);
        Some(Self { units, hidden, place, standing: standing.into_iter().collect() })
    }

    /// The units that the summary takes the place of.
    pub fn place(&self) -> Range<UnitIndex> {
        self.place.clone()
    }

    /// The stretches that are not sent, in order.
    pub fn hidden(&self) -> impl Iterator<Item = Range<UnitIndex>> {
        self.hidden.iter().cloned()
    }

    /// The units of the view that replace the folded ones: the summary, and what stays beside it.
    pub fn in_place(&self) -> Range<UnitIndex> {
        self.units.start..self.units.start.plus(self.standing.len())
    }

    /// The index of the summary in the view.
    pub fn summary(&self) -> UnitIndex {
        self.view_unit(self.place.start)
    }

    /// The index in the view of a unit; that of the summary for one that is not sent.
    pub fn view_unit(&self, unit: UnitIndex) -> UnitIndex {
        let Range { start, end } = self.units;
        if unit < start {
            return unit;
        }
        if unit >= end {
            return self.in_place().end.plus(unit.get() - end.get());
        }
        let at = self.standing.binary_search(&unit).or_else(|_| self.standing.binary_search(&self.place.start));
        start.plus(at.unwrap_or_default())
    }

    /// The index that a unit of the view has in the conversation; the first of those that it takes the place of for the
    /// summary.
    pub fn original_unit(&self, unit: UnitIndex) -> UnitIndex {
        let Range { start, end } = self.in_place();
        match unit.get().checked_sub(start.get()).and_then(|at| self.standing.get(at)) {
            Some(unit) => *unit,
            None if unit < start => unit,
            None => self.units.end.plus(unit.get() - end.get()),
        }
    }
}

/// The units of the rounds that a result after the folded ones belongs to and of the rounds that make tools known, and the
/// units in one element with them.
fn reopened(conversation: &Conversation<'_>, pairing: &Pairing, units: &Range<UnitIndex>) -> BTreeSet<UnitIndex> {
    let from = |unit| pairing.results.partition_point(|result| result.unit < unit);
    let (first, behind) = (from(units.start), from(units.end));
    let results = |range: Range<usize>| pairing.results.get(range).unwrap_or_default().iter();
    let turn = |call: Option<CallIndex>| {
        let caller = conversation.caller(pairing.call(call?)?.block)?;
        conversation.unit(caller).map(|unit| (unit.turn, caller))
    };
    let first_of_all = UnitIndex::default();
    let late = results(behind..pairing.results.len()).filter_map(|result| turn(result.answers));
    let mut new: Vec<UnitIndex> = late.map(|(_, caller)| caller).filter(|caller| units.contains(caller)).collect();
    let loads = |unit: &UnitIndex| conversation.unit(*unit).is_some_and(|unit| unit.flags.loads);
    new.extend(UnitIndex::each(units).filter(loads));
    let mut reopened = BTreeSet::new();
    if new.is_empty() {
        return reopened;
    }
    let mut in_time: BTreeSet<_> =
        results(first..behind).filter_map(|result| Some((turn(result.answers)?.0, result.unit))).collect();
    // Until nothing comes along any more: the turn of each unit, the results of each turn, the element of each unit.
    while let Some(unit) = new.pop() {
        if !units.contains(&unit) || !reopened.insert(unit) {
            continue;
        }
        let Some(of) = conversation.unit(unit) else { continue };
        new.extend(conversation.element(of.element).into_iter().flat_map(|element| UnitIndex::each(&element.units)));
        if of.role == Role::Assistant {
            new.extend(UnitIndex::each(&conversation.turn_of(unit)));
            let answers: Vec<_> =
                in_time.range((of.turn, first_of_all)..(of.turn + 1, first_of_all)).copied().collect();
            in_time.retain(|answer| !answers.contains(answer));
            new.extend(answers.into_iter().map(|(_, result)| result));
        }
        if of.role == Role::Tool {
            new.extend(turn(pairing.result(unit).and_then(|result| result.answers)).map(|(_, caller)| caller));
        }
    }
    reopened
}

impl Conversation<'_> {
    /// The same with one unit of the user in place of folded ones, which says nothing yet.
    #[must_use]
    pub fn folded(&self, fold: &Fold) -> Self {
        let Range { start, end } = fold.units;
        let mut view = Self {
            model: self.model.clone(),
            tools: self.tools,
            more_tools: self.more_tools.clone(),
            format: self.format,
            instructions: self.instructions,
            traits: self.traits,
            ..Self::default()
        };
        // The element and the unit before, as they came.
        let (mut element, mut before) = (None, None);
        let before_it = UnitIndex::each(&(UnitIndex::default()..start));
        let behind = UnitIndex::each(&(end..self.next_unit()));
        for index in before_it.chain(fold.standing.iter().copied()).chain(behind) {
            let Some(unit) = self.unit(index) else { continue };
            let at = view.next_unit();
            if index == fold.place.start {
                let flags = Flags { speaks: true, ..Flags::default() };
                let unit = view.following(false);
                view.push_element(Unit { span: self.span_of(fold.place()), role: Role::User, flags, ..unit });
                continue;
            }
            let continues = before.is_some_and(|before: UnitIndex| {
                before.next() == index && self.unit(before).is_some_and(|before| before.turn == unit.turn)
            });
            if element != Some(unit.element) {
                element = Some(unit.element);
                let span = self.element(unit.element).map(|element| element.span).unwrap_or_default();
                view.elements.push(Element { span, units: at..at });
            }
            if let Some(element) = view.elements.last_mut() {
                element.units.end = at.next();
            }
            before = Some(index);
            let blocks = self.blocks_of(unit).iter().cloned();
            view.blocks.extend(blocks.map(|block| super::Block { unit: at, ..block }));
            let Unit { turn, blocks, .. } = view.following(continues);
            let element = ElementIndex::new(view.elements.len() - 1);
            view.units.push(Unit { element, turn, blocks, ..unit.clone() });
        }
        view
    }
}
