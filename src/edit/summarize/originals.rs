//! The parts that a summary keeps word for word, read out of the messages as the client sent them.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

use super::PreserveSkills;
use super::frame::{OwnFrame, skill_name};
use crate::conversation::{BlockIndex, Conversation, ElementIndex, Pairing, Role, Unit, UnitIndex};
use crate::draft::{Draft, ParsedRequest};
use crate::plan::OffloadedPayload;
use crate::raw::leaves;
use crate::summary::NameSources;

/// The messages that a summary replaces, as they came.
pub(super) struct Originals<'a> {
    pub(super) request: ParsedRequest<'a>,
    pub(super) units: Range<UnitIndex>,
}

impl<'a> Originals<'a> {
    /// The user's words, from first to last: of a summary that came back as a message, what the user says in that.
    pub(super) fn user_texts(&self, own: OwnFrame) -> Vec<Cow<'a, str>> {
        let units = self.units().iter().filter(|unit| unit.role == Role::User);
        let texts = units.filter_map(|unit| self.request.text(unit));
        texts.flat_map(|text| own.user_texts(&text).unwrap_or_else(|| vec![text])).collect()
    }

    /// The skills that were loaded, from first to last: their names, and what the tool said.
    pub(super) fn skills(&self, settings: Option<&PreserveSkills>) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
        let Some(settings) = settings else { return Vec::new() };
        let conversation = self.request.conversation;
        let pairing = Pairing::of(conversation);
        let results = pairing.results.iter().filter(|result| self.units.contains(&result.unit));
        let skill = |unit: UnitIndex| {
            let call = pairing.answered_block(unit).filter(|&call| conversation.tool_name(call) == settings.tool)?;
            let name = skill_name(&self.request.arguments(call)?)?;
            Some((name.into(), self.request.text(conversation.unit(unit)?)?))
        };
        results.filter_map(|result| skill(result.unit)).collect()
    }

    /// The texts among which names are looked for.
    pub(super) fn name_sources(&self) -> NameSources<Cow<'a, str>> {
        let ParsedRequest { body, conversation, .. } = self.request;
        let &Conversation { tools, instructions, format, .. } = conversation;
        let outside = [tools, instructions, format].into_iter().flatten();
        let outside = outside.filter_map(|value| str::from_utf8(value.of(body)).ok()).flat_map(leaves);
        let leading = conversation.unit_range(&(UnitIndex::default()..self.units.start));
        let tail = conversation.unit_range(&(self.units.end..conversation.next_unit()));
        let (beside, replaced): (Vec<_>, Vec<_>) = self.units().iter().partition(|unit| unit.flags.follows_user);
        let before = leading.iter().chain(beside).flat_map(|unit| self.says(unit));
        NameSources {
            in_sight: outside.map(|leaf| leaf.text.into()).chain(before).collect(),
            replaced: replaced.into_iter().flat_map(|unit| self.says(unit)).collect(),
            tail: tail.iter().flat_map(|unit| self.says(unit)).collect(),
        }
    }

    /// All messages as JSON, one a line, and their name in the store.
    pub(super) fn transcript(&self, draft: &Draft<'_>) -> OffloadedPayload {
        let conversation = self.request.conversation;
        let covered = ElementIndex::numbers(&conversation.elements_of(self.units.clone()));
        let elements = conversation.elements.get(covered).unwrap_or_default();
        let mut lines = Vec::with_capacity(elements.iter().map(|element| element.span.len() + 1).sum());
        for element in elements {
            // Inside of strings no line ends.
            let one_line = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
            lines.extend(element.span.of(self.request.body).iter().map(one_line));
            lines.push(b'\n');
        }
        OffloadedPayload {
            key: draft.context.keys.payload(draft.context.caller, &lines),
            payload: Bytes::from(lines).into(),
            likely_stored: false,
        }
    }

    fn units(&self) -> &'a [Unit] {
        self.request.conversation.unit_range(&self.units)
    }

    /// The texts of a unit and of the arguments of its calls.
    fn says(&self, unit: &Unit) -> Vec<Cow<'a, str>> {
        if unit.flags.for_program {
            return Vec::new();
        }
        let calls = BlockIndex::each(&unit.blocks).filter_map(|call| self.request.arguments(call));
        let arguments = calls.flat_map(|json| leaves(&json)).map(|leaf| leaf.text.into());
        self.request.text(unit).into_iter().chain(arguments).collect()
    }
}
