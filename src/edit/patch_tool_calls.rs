//! `patch_tool_calls`: gives every tool call its result, and every result its call.
//!
//! # What it does
//! - A result that other messages have parted from its batch is moved to the results after that batch.
//! - A call without a result gets one that says so.
//! - If all results of a batch have to be in one element (Gemini), they go to the element of the first one.
//! - If each result is a separate message and the calls have ids, results have the order of their calls, because some
//!   templates pair results by position. What came in another order stays so beside a second result of a call.
//! - A result without a call, or a second one for the same call, is stored and dropped, or kept if the settings say so.
//!   If the wire format lets a call have several results, each further result keeps its place.
//!
//! A result answers the nearest earlier batch that has an unanswered call of its id, so ids that repeat from turn to
//! turn or within one batch pair off one by one. A call or a result without an id is paired by position, within the
//! results directly after the batch.
//!
//! # When it acts
//! On every request that has such a call or result, wherever it stands; the last message is not an exception.
//!
//! # What the model sees
//! For a missing result, the `template` with the name of the tool and the id of the call, 64 bytes of each at most, or what a handler says. It blames
//! no one, because the reason is not known. For a moved result, the result.
//!
//! # What it never touches
//! Calls, arguments, the text of results, any message that is not a tool result; the legacy `function_call` and the
//! role `function`. Everything that is paired already stays as it is, byte for byte.
//!
//! The texts depend on the call alone, and on the answer of a handler, which is made once for a call, so a conversation that grows by whole steps keeps the bytes of its beginning.
//! One thing changes what was sent before: a real result that arrives late replaces its placeholder.
//! That text goes with it to the draft, as edits that walk through earlier requests count it there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Edit, Language, SharedSettings, own_texts::Template};
use crate::conversation::{BlockIndex, BlockKind, PairedCall, PairedResult, Pairing, UnitIndex};
use crate::draft::{Draft, Question};
use crate::handler::{Answer, MAX_ANSWER, Subject};

/// `[patch_tool_calls]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The text of an inserted result. `{tool_name}` and `{tool_call_id}` are filled in.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"Tool call {tool_name} ({tool_call_id}) has no result: it was interrupted before it finished."`
    pub template: Option<String>,
    /// The handler of `[handlers]` that says what an inserted result says.
    ///
    /// Not set: `template` says it.
    ///
    /// Example: `"missing"`
    pub handler: Option<String>,
    /// What happens to a result that answers no call, and to a result too many of a call.
    pub orphans: Orphans,
}

/// What becomes of a result without a call.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Orphans {
    /// It is stored and removed; strict upstreams answer 400 to it.
    #[default]
    Drop,
    /// It stays where it is.
    Keep,
}

/// The most bytes of a name or an id that a text shows: what OpenAI allows for either.
const MAX_SHOWN: usize = 64;

impl Settings {
    /// The text that replaces a missing result.
    pub(crate) fn template(&self, language: Language) -> Template {
        let usual = language.choose(
            "Tool call {tool_name} ({tool_call_id}) has no result: it was interrupted before it finished.",
            "工具调用 {tool_name}（{tool_call_id}）没有结果：它在完成之前被中断了。",
        );
        Template::new(self.template.as_deref().unwrap_or(usual), &["tool_name", "tool_call_id"])
    }
}

/// Its name, as handlers are told it.
const NAME: &str = "patch_tool_calls";
/// The label of its changes.
const LABEL: &str = "patch";

/// The edit.
#[derive(Debug)]
pub struct PatchToolCalls {
    settings: Settings,
    shared: Arc<SharedSettings>,
}

impl PatchToolCalls {
    /// The edit with its settings.
    pub fn new(settings: &Settings, shared: &Arc<SharedSettings>) -> Self {
        Self { settings: settings.clone(), shared: Arc::clone(shared) }
    }
}

impl Edit for PatchToolCalls {
    fn apply(&self, draft: &mut Draft<'_>) {
        let pairing = draft.pairing();
        let mut answers = vec![None; pairing.calls.len()];
        for result in &pairing.results {
            match result.answers.and_then(|call| answers.get_mut(call.get())) {
                Some(answer) if !result.is_further => *answer = Some(result),
                None if self.drops(result) => {
                    draft.drop_result(LABEL, result.unit);
                }
                _ => {}
            }
        }
        // The end of the run of the batch, the message after which the result of its next call is put, and whether results in
        // another order than the calls are moved.
        let (mut batch, mut behind, mut reorders, mut place) = (None, UnitIndex::default(), false, None);
        for (n, (call, answer)) in pairing.calls.iter().zip(&answers).enumerate() {
            let (Some(start), Some(end)) = (pairing.run_start_of(call), pairing.run_end_of(call)) else { continue };
            if batch != Some(end) {
                let of_batch = pairing.calls.iter().zip(&answers).skip(n);
                let mut of_batch = of_batch.take_while(|(other, _)| pairing.run_end_of(other) == Some(end));
                let gathers = draft.conversation.traits.gathers_results;
                place = gathers.then(|| gathering_place(draft, &pairing, call)).flatten();
                let first = draft.conversation.unit(start.next());
                let has_order = first.is_some_and(|first| draft.conversation.is_element(first))
                    && of_batch.all(|(call, result)| call.named && result.is_none_or(|result| result.named));
                (batch, behind) = (Some(end), if has_order { start } else { place.unwrap_or(end) });
                reorders = has_order
                    && pairing.run_of(call).iter().all(|result| match result.answers {
                        Some(_) => !result.is_further,
                        None => self.drops(result),
                    });
            }
            match answer.map(|result| result.unit) {
                Some(late) if late > end => {
                    // What was there until now depends on the call alone.
                    let placeholder = self.text(draft, call.block).unwrap_or_default();
                    if !draft.move_result(LABEL, late, behind, Some(&placeholder)) {
                        draft.note_late_result(late, behind, &placeholder);
                    }
                }
                Some(result) if result > behind && place.is_none_or(|place| result <= place) => behind = result,
                Some(result) if reorders || place.is_some_and(|place| result > place) => {
                    draft.move_result(LABEL, result, behind, None);
                }
                None if call.answerable => {
                    if let Some(text) = self.text(draft, call.block) {
                        draft.insert_result(LABEL, call.block, behind, &text);
                    }
                }
                _ => {}
            }
        }
        draft.insert_texts_for_removed_results(LABEL);
    }
}

/// The last result in the element with the first result of a batch, where all its results have to be.
fn gathering_place(draft: &Draft<'_>, pairing: &Pairing, call: &PairedCall) -> Option<UnitIndex> {
    let element = |result: &PairedResult| draft.conversation.unit(result.unit).map(|unit| unit.element);
    let mut results = pairing.run_of(call).iter().filter(|result| result.answers.is_some());
    let first = results.next()?;
    Some(results.take_while(|result| element(result) == element(first)).last().unwrap_or(first).unit)
}

impl PatchToolCalls {
    /// Whether a result leaves if it answers no call.
    fn drops(&self, result: &PairedResult) -> bool {
        self.settings.orphans == Orphans::Drop && result.may_leave
    }

    fn text(&self, draft: &Draft<'_>, call: BlockIndex) -> Option<String> {
        let BlockKind::ToolCall { id, name, .. } = &draft.conversation.block(call)?.kind else { return None };
        let text = self.shared.own_texts.missing.fill(|place| {
            let value = if place == "tool_name" { name.as_deref().unwrap_or_default() } else { &id.text };
            // Some servers write a signature of thousands of bytes into the id of a call.
            let shown = value.get(..value.floor_char_boundary(MAX_SHOWN)).unwrap_or(value);
            if value.is_empty() { self.shared.language.choose("unknown", "未知") } else { shown }
        });
        let handler = self.shared.handler(self.settings.handler.as_deref(), || None);
        let Some(handler) = handler else { return Some(text) };
        let question = Question { edit: NAME, handler, most_bytes: MAX_ANSWER };
        let subject = || Subject::Name(id.text.clone().into_owned());
        match draft.answer(question, Some(call), id.text.as_bytes(), || (text.clone(), None), subject) {
            Answer::Replace { text: answer } => Some(answer),
            _ => Some(text),
        }
    }
}

#[cfg(test)]
mod tests;
