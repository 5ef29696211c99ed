//! Forms that an upstream requires, applied after the edits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    Draft, ParsedRequest, ReplaceOptions,
    insertion::{Inserted, Insertion},
    replacement::Replacement,
};
use crate::{
    conversation::{Block, BlockIndex, BlockKind, CallId, CallIndex, Role, UnitIndex},
    dialect::{Form, strings},
    plan::{Action, Sizes},
    span::Span,
};

/// The label of the changes that a form makes.
const LABEL: &str = "form";

/// The longest beginning of an id that another id is made of, in bytes: ids may have 64.
const LONGEST_START: usize = 48;

impl Draft<'_> {
    /// Brings the request into these forms.
    pub fn apply_forms(&mut self, forms: &[Form]) {
        for form in forms {
            match form {
                Form::Arguments => self.mend_arguments(),
                Form::Filled | Form::LeadingSystem => self.mend_elements(*form),
                Form::Bridge => self.bridge_results(forms.contains(&Form::LeadingSystem)),
                Form::UniqueIds => self.rename_calls(),
            }
        }
    }

    /// Replaces arguments that are not a JSON object.
    fn mend_arguments(&mut self) {
        let options = ReplaceOptions { stored: true, smaller: false, media: false };
        let blocks = (0..self.request.conversation.blocks.len()).map(BlockIndex::new);
        for call in blocks.collect::<Vec<_>>() {
            let ParsedRequest { dialect, body, conversation } = self.request;
            let (Some(span), Some(unit)) = (self.call_span(call), conversation.caller(call)) else { continue };
            if let Some((input, with)) = dialect.retyped_input(body, span) {
                self.replace_value(unit, input, with);
                continue;
            }
            let takes_object = dialect.input(body, span).is_some_and(|input| input.emptied_text() == "{}");
            if !takes_object || self.arguments(call).is_none_or(|arguments| strings::is_object(&arguments)) {
                continue;
            }
            if let Ok(proposed) = self.propose_input(call, options) {
                let action = Action::ClearInput { message: proposed.unit().get() };
                self.apply_to_any(LABEL, action, proposed);
            }
        }
    }

    /// Makes the replacements that the dialect names for each element.
    fn mend_elements(&mut self, form: Form) {
        let conversation = self.request.conversation;
        for element in &conversation.elements {
            let first = element.units.start;
            let leads = first < self.first_editable;
            if (leads && form == Form::LeadingSystem)
                || !UnitIndex::each(&element.units).any(|unit| self.is_in_place(unit))
            {
                continue;
            }
            for (span, with) in self.request.dialect.form_replacements(self.request.body, element.span, form) {
                let holds = |unit: &UnitIndex| {
                    let of = self.span(*unit);
                    of.start <= span.start && span.end <= of.end
                };
                let unit = UnitIndex::each(&element.units).find(holds).unwrap_or(first);
                self.replace_value(unit, span, Bytes::from_static(with.as_bytes()));
            }
        }
    }

    /// Inserts an answer of the model between results and a message of the user, or instructions, if `leads_system` gives them the role of the user.
    fn bridge_results(&mut self, leads_system: bool) {
        let Some(bridge) = self.request.dialect.bridge() else { return };
        let is_result = |insertion: &&Insertion| !insertion.gone && !matches!(insertion.what, Inserted::Text { .. });
        let with_results: BTreeSet<_> = self.insertions.iter().filter(is_result).map(|result| result.behind).collect();
        let is_of_user =
            |role: Role| role == Role::User || (leads_system && matches!(role, Role::System | Role::Developer));
        let (mut before, mut ends_in_result, mut places) = (None, false, Vec::new());
        for (index, unit) in self.request.conversation.indexed_units() {
            if self.is_in_place(index) {
                places.extend(before.filter(|_| ends_in_result && is_of_user(unit.role)));
                ends_in_result = unit.role == Role::Tool;
            }
            ends_in_result |= with_results.contains(&index);
            before = Some(index);
        }
        let first = self.first_editable;
        for behind in places.into_iter().filter(|place| *place >= first) {
            self.insert_message(LABEL, behind, bridge.clone());
        }
    }

    /// Gives a new id to each call whose id an earlier call has, and to its result.
    fn rename_calls(&mut self) {
        let (conversation, pairing) = (self.request.conversation, self.pairing());
        let mut taken: BTreeSet<String> =
            conversation.blocks.iter().map(|block| id_of(block).text.clone().into_owned()).collect();
        let mut results: BTreeMap<CallIndex, Vec<UnitIndex>> = BTreeMap::new();
        for result in &pairing.results {
            if let Some(call) = result.answers {
                results.entry(call).or_default().push(result.unit);
            }
        }
        let mut met = BTreeSet::new();
        // The last number behind each beginning of an id.
        let mut last: BTreeMap<&str, usize> = BTreeMap::new();
        let mut renamed = BTreeMap::new();
        for (n, call) in pairing.calls.iter().enumerate() {
            let Some(id) = conversation.block(call.block).map(id_of) else { continue };
            let Some(raw) = id.raw.filter(|_| !id.text.is_empty() && !met.insert(&id.text)) else { continue };
            let start = id.text.get(..id.text.floor_char_boundary(LONGEST_START)).unwrap_or_default();
            let number = last.entry(start).or_insert(1);
            let another = loop {
                *number += 1;
                let another = format!("{start}_{number}");
                if taken.insert(another.clone()) {
                    break another;
                }
            };
            let Ok(json) = serde_json::to_vec(&another).map(Bytes::from) else { continue };
            let unit = conversation.caller(call.block).unwrap_or_default();
            if !self.replace_value(unit, raw, json.clone()) {
                continue;
            }
            for unit in results.remove(&CallIndex::new(n)).unwrap_or_default() {
                let of = conversation.unit(unit).and_then(|unit| conversation.blocks_of(unit).first()).map(id_of);
                if let Some(raw) = of.and_then(|id| id.raw) {
                    self.replace_value(unit, raw, json.clone());
                }
            }
            renamed.insert(call.block, (raw, json));
        }
        for insertion in &mut self.insertions {
            if let Inserted::New { call, bytes } = &mut insertion.what
                && let Some((raw, json)) = renamed.get(call)
                && let Some(at) = memchr::memmem::find(bytes, raw.of(self.request.body))
            {
                let rest = bytes.get(at + raw.len()..).unwrap_or_default();
                *bytes = [bytes.get(..at).unwrap_or_default(), json, rest].concat().into();
            }
        }
    }

    /// Replaces a JSON value. False if an edit has replaced it already, or if the message is removed.
    fn replace_value(&mut self, unit: UnitIndex, span: Span, with: Bytes) -> bool {
        let is_taken = self
            .replacements
            .range(..=span.end)
            .next_back()
            .is_some_and(|(_, other)| other.span.end > span.start || other.span.start == span.start);
        let goes_on = self.is_in_place(unit) || self.moved.contains(&unit);
        if is_taken || !goes_on {
            return false;
        }
        let bytes = Sizes { before: span.len(), after: with.len() };
        let change = self.journal.make(self.about_result(LABEL, Action::Mend { message: unit.get() }, unit, bytes));
        self.n_bytes = (self.n_bytes + with.len()).saturating_sub(span.len());
        self.tokens_now.borrow_mut().remove(&unit);
        self.replacements.insert(span.start, Replacement::whole(span, with, change));
        true
    }
}

/// The id of a call, or of the call that a result answers.
fn id_of<'b, 'a>(block: &'b Block<'a>) -> &'b CallId<'a> {
    match &block.kind {
        BlockKind::ToolCall { id, .. } | BlockKind::ToolResult { call_id: id, .. } => id,
    }
}
