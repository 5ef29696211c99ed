//! Turns: runs of units of one speaker. What the model has read, and where it was called, follows from them.

use std::ops::Range;

use super::{Conversation, Role, Unit, UnitIndex};

impl Conversation<'_> {
    /// The units of the turn that a unit is in.
    pub fn turn_of(&self, unit: UnitIndex) -> Range<UnitIndex> {
        let Some(turn) = self.unit(unit).map(|unit| unit.turn) else { return Range::default() };
        let end = |turn| UnitIndex::new(self.units.partition_point(|unit| unit.turn < turn));
        end(turn)..end(turn + 1)
    }

    /// The turns.
    fn turns(&self) -> impl DoubleEndedIterator<Item = &[Unit]> {
        self.units.chunk_by(|unit, next| unit.turn == next.turn)
    }

    /// The last turn in which the model has answered. What follows it has not been read by the model yet. Turns of
    /// the model without calls at the end of a request are a prefill, which the model is to continue, and no answer.
    pub fn last_answer(&self) -> Option<Range<UnitIndex>> {
        let mut end = self.units.len();
        let turns = self.turns().rev().map(|turn| {
            end -= turn.len();
            (turn, end)
        });
        let mut answers = turns.skip_while(|(turn, _)| is_plain_answer(turn)).filter(|(turn, _)| is_of_model(turn));
        answers.next().map(|(turn, start)| UnitIndex::new(start)..UnitIndex::new(start + turn.len()))
    }

    /// Where the model was called, each place as the index of the unit after it: before each of its turns, and at the
    /// end. What follows a turn of the model without calls was called for with that as a prefill, so that no call is
    /// known of between the two.
    pub fn model_calls(&self) -> Vec<UnitIndex> {
        let mut places = Vec::new();
        let (mut start, mut before_is_plain) = (UnitIndex::default(), false);
        for turn in self.turns() {
            if !before_is_plain && is_of_model(turn) {
                places.push(start);
            }
            before_is_plain = is_plain_answer(turn);
            start = start.plus(turn.len());
        }
        if !before_is_plain {
            places.push(start);
        }
        places
    }

    /// The units as [`unread_from`] needs them.
    pub fn turn_units(&self) -> impl Iterator<Item = TurnUnit> {
        let before = std::iter::once(None).chain(self.units.iter().map(|unit| Some(unit.turn)));
        self.units.iter().zip(before).map(|(unit, before)| TurnUnit {
            role: unit.role,
            calls: !unit.blocks.is_empty(),
            continues: before == Some(unit.turn),
        })
    }
}

fn is_of_model(turn: &[Unit]) -> bool {
    turn.first().is_some_and(|unit| unit.role == Role::Assistant)
}

/// Whether a turn is of the model and calls nothing. At the end of a request it is a prefill.
fn is_plain_answer(turn: &[Unit]) -> bool {
    is_of_model(turn) && turn.iter().all(|unit| unit.blocks.is_empty())
}

/// The properties of a unit that [`unread_from`] reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TurnUnit {
    /// Who speaks.
    pub role: Role,
    /// Whether it calls.
    pub calls: bool,
    /// Whether it is in the turn of the one before.
    pub continues: bool,
}

/// Where that begins which the model has not read yet, with the round that it belongs to; the last unit in any case.
/// 0 if the model has not said anything.
pub fn unread_from(units: impl IntoIterator<Item = TurnUnit>) -> usize {
    // Each turn is told as one unit, by where it begins and how many units it has.
    let mut turns: Vec<(usize, usize, TurnUnit)> = Vec::new();
    for (n, unit) in units.into_iter().enumerate() {
        match turns.last_mut().filter(|_| unit.continues) {
            Some((_, n_units, turn)) => (*n_units, turn.calls) = (*n_units + 1, turn.calls | unit.calls),
            None => turns.push((n, 1, unit)),
        }
    }
    let n_turns = turns.len();
    let is_prefill = |turn: &TurnUnit| turn.role == Role::Assistant && !turn.calls;
    let answered = turns.iter().enumerate().rev().skip_while(|(_, (.., turn))| is_prefill(turn));
    let mut has_result = false;
    for (n, (start, n_units, turn)) in answered {
        match turn.role {
            Role::Assistant if has_result || n + 1 == n_turns => return *start,
            Role::Assistant => return start + n_units,
            role => has_result |= role == Role::Tool,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_before_each_answer_and_not_behind_a_prefill() {
        // `c` is a message of the model with calls, `a` one without.
        for (roles, calls) in [
            ("", &[0][..]),
            ("u", &[1]),
            ("ucttu", &[1, 5]),
            ("uc", &[1, 2]),
            ("uau", &[1, 3]),
            // The model goes on with what it has said, or with what is said to have been its words.
            ("ua", &[1]),
            ("uaa", &[1]),
            ("uacta", &[1, 4]),
            ("uaau", &[1, 4]),
        ] {
            let messages = roles.chars().map(|c| match c {
                'u' => r#"{"role":"user"}"#,
                'a' => r#"{"role":"assistant"}"#,
                'c' => r#"{"role":"assistant","tool_calls":[{"id":"x"}]}"#,
                _ => r#"{"role":"tool"}"#,
            });
            let body = format!(r#"{{"messages":[{}]}}"#, messages.collect::<Vec<_>>().join(","));
            let conversation = crate::dialect::for_path("/chat/completions").unwrap().parse(body.as_bytes()).unwrap();
            let model_calls: Vec<_> = conversation.model_calls().into_iter().map(UnitIndex::get).collect();
            assert_eq!(model_calls, calls, "{roles}");
        }
    }

    #[test]
    fn what_follows_the_last_round_is_unread_with_it() {
        // `c` is a message of the model with calls, `a` one without; `t` is a result.
        for (roles, from) in [
            ("", 0),
            ("uu", 0),
            ("utu", 0),
            ("uc", 1),
            ("uau", 2),
            ("uauu", 2),
            ("uct", 1),
            ("ucttu", 1),
            ("ucut", 1),
            ("uctc", 3),
            ("uctau", 4),
            ("uctct", 3),
            ("suctuau", 6),
            // A prefill is not an answer.
            ("ua", 0),
            ("uaa", 0),
            ("ucta", 1),
            ("uctaa", 1),
            ("uctuau", 5),
            ("uctaua", 4),
            ("uca", 2),
        ] {
            let role = |c| match c {
                's' => (Role::System, false),
                'u' => (Role::User, false),
                'a' => (Role::Assistant, false),
                'c' => (Role::Assistant, true),
                _ => (Role::Tool, false),
            };
            let all: Vec<_> = roles.chars().map(role).collect();
            let turn_units = |(role, calls)| TurnUnit { role, calls, continues: false };
            assert_eq!(unread_from(all.into_iter().map(turn_units)), from, "{roles}");
        }
    }
}
