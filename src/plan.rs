//! The plan of one request, as plain owned data, and the report about it. Both print: that is the dry run.

use std::ops::Range;

use serde::Serialize;

use crate::handler::HandlerAsk;
use crate::payload::{ChainKey, Lifetime, OffloadedPayload, PayloadKey};
use crate::span::Splice;
use crate::summary::{Frame, Outline, SummaryInput};
use crate::tokens::factor::Factor;
use crate::units::prorated;

pub use self::action::Action;
pub use self::basis::{Basis, CountedWith, PromptSegment, Received, SentFact, SentFacts, SentNames};

mod action;
mod basis;
mod display;

/// What is to be done to one request body.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq)]
#[display("{report}")]
pub struct Plan {
    /// The replacements, sorted and disjoint.
    pub splices: Vec<Splice>,
    /// The feature of the upstream that the new body uses, by the name that its header has to have.
    pub beta: Option<&'static str>,
    /// What must be stored for good before the new body goes upstream, because that names it. Each key is there once.
    pub offloads: Vec<OffloadedPayload>,
    /// How long that is to be kept.
    pub lifetime: Lifetime,
    /// The missing input of a better plan. This one can be carried out without.
    pub needs: Option<Need>,
    /// What handlers have to be asked for a better plan.
    pub asks: Vec<HandlerAsk>,
    /// The segments of the prompt, in order: the tools, and then each message as it is sent. Empty where no tokens were counted.
    pub segments: Vec<PromptSegment>,
    /// What was known when it was made.
    pub basis: Basis,
    /// What the splices mean.
    pub report: Report,
}

/// What a better plan needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Need {
    /// A summary that the store has.
    Load(ChainKey),
    /// A look at what other processes know, before a summary is made.
    LookUp,
    /// A summary that is not made yet.
    Make(Box<SummaryJob>),
}

/// A summary to be made, with all that is needed to make it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SummaryJob {
    /// The name of what it will replace.
    pub key: ChainKey,
    /// The name after the second message, by which other processes find it.
    pub root: ChainKey,
    /// Whether the request waits for it. If not, a later one will use it.
    pub waits: bool,
    /// The messages that it will replace, as they came.
    pub covers: Range<usize>,
    /// The tokens of those as they came.
    pub tokens_replaced: usize,
    /// How many elements the request has.
    pub n_elements: usize,
    /// The factor that tokens are counted with.
    pub factor: Factor,
    /// The tokens of what it will take the place of, as the edits have left that.
    pub tokens: usize,
    /// Its message must have fewer tokens.
    pub below_tokens: usize,
    /// The model that the request asks.
    pub model: Option<String>,
    /// What it is made from.
    pub source: SummaryInput,
    /// What that is, without what it says.
    pub outline: Outline,
    /// What will stand around it.
    pub frame: Frame,
    /// What must be stored before it is used, because the frame names it.
    pub transcript: Option<OffloadedPayload>,
}

/// What was, or would be, done to one request. It holds names and numbers and nothing of what the messages say.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Report {
    /// The model that is asked.
    pub model: Option<String>,
    /// What each edit decided: a summary that was there first, then in policy order, and within one edit in the order it
    /// decided in.
    pub changes: Vec<Change>,
    /// What an edit would have done and did not.
    pub left_out: Vec<SkippedChange>,
    /// Whether a setting that is a fraction of the model's context window was not applied, because the window is not
    /// known.
    pub unknown_window: bool,
    /// The calls that ask for something cleared.
    #[serde(skip_serializing_if = "Regrets::is_none")]
    pub regrets: Regrets,
    /// Whether the tool is added by which the model reads what was taken out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adds_tool: bool,
    /// Whether a mark is added that asks for the prompt cache.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub requests_cache: bool,
    /// Whether tools are brought into a form that the upstream requires.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mends_tools: bool,
    /// Whether texts were taken out and nothing that the request offers could read them back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_recall: bool,
    /// The window of the model, in tokens, where the request has more of them as it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beyond_window: Option<usize>,
    /// The type of the message that prevented a summary, because no summary may replace it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// The length of the message array as it came.
    pub messages_before: usize,
    /// The length of the message array as it goes on.
    pub messages_after: usize,
    /// The length of the body as it came.
    pub bytes_before: usize,
    /// The length of the body as it goes on.
    pub bytes_after: usize,
    /// The tokens of the messages and the tool definitions as they came; none where nothing was counted.
    pub tokens_before: Option<usize>,
    /// The same as they go on.
    pub tokens_after: Option<usize>,
    /// Which elements are where as they go on.
    #[serde(skip)]
    pub layout: Layout,
}

/// How often the model has asked for what was cleared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Regrets {
    /// The calls of the last answer that repeat one whose result is cleared.
    pub repeated: usize,
    /// The calls of the last answer whose arguments name a cleared result.
    pub recalled: usize,
    /// The calls of both kinds in the conversation.
    pub in_all: usize,
    /// Whether `clear_tool_results.keep` has doubled for that.
    pub keep_doubled: bool,
}

/// How the elements that go on differ in number and order from those that came. Elements are named by their index as
/// they came.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Layout {
    /// The elements that do not go on, apart from those that a summary replaces.
    pub gone: Vec<usize>,
    /// The elements that are put in, in order: after which one, and which it was before, if it has been moved.
    pub placed: Vec<(usize, Option<usize>)>,
}

/// One decision of one edit.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Change {
    /// The label of the edit.
    pub edit: &'static str,
    /// What it does.
    pub action: Action,
    /// The id of the call that it is about.
    pub call_id: String,
    /// The tool, where the change is about a call and the call names one.
    pub tool_name: Option<String>,
    /// The bytes of what is taken out, and of what is there instead; of a call that is left out or a message that
    /// is moved or put in, those of its JSON.
    pub bytes: Sizes,
    /// The same in tokens, where they were counted.
    pub tokens: Option<Sizes>,
    /// The names of what was taken out and stored: of each text of a result one.
    pub handles: Vec<PayloadKey>,
    /// The later use of the file that a cleared result was read from: it was read again, or edited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

/// A size before and after a change.
#[derive(Clone, Copy, Debug, Default, derive_more::Display, Eq, PartialEq, Serialize)]
#[display("{before} -> {after}")]
pub struct Sizes {
    /// Before.
    pub before: usize,
    /// After.
    pub after: usize,
}

/// A change that was not made.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct SkippedChange {
    /// The label of the edit.
    pub edit: &'static str,
    /// The message that it is about, if it is about one.
    pub message: Option<usize>,
    /// The id of the call.
    pub call_id: String,
    /// The tool.
    pub tool_name: Option<String>,
    /// Why.
    pub why: SkipReason,
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SkipReason {
    /// What is taken out could not be stored.
    #[display("there is no store to take what is left out")]
    NoStore,
    /// The replacement would not be smaller.
    #[display("what would stand there is not smaller")]
    NotSmaller,
    /// The whole pass would free less than `clear_at_least`, or a summary would stand for next to nothing new.
    #[display("it would free too little")]
    TooLittle,
    /// No summary yet: it is being made, it cannot be made here, or that has failed.
    #[display("there is no summary yet")]
    NoSummary,
    /// There is a summary of nearly the same messages, but the client has changed some of them since.
    #[display("nearly the same was summarised before, and the client has changed messages since")]
    Rewritten,
    /// The server has more of the conversation than the request shows: what it stored cannot be edited.
    #[display("history is on the server")]
    HistoryElsewhere,
    /// The request asks the server to clear tool results itself.
    #[display("the request asks the server to clear tool results")]
    ServerClears,
    /// The request asks the server to compact the conversation itself.
    #[display("the request asks the server to compact the conversation")]
    ServerCompacts,
    /// The model's reasoning is bound to what precedes it, and is not to be left out.
    #[display("the model's reasoning is bound to what stands before it")]
    PrefixBound,
}

impl Change {
    /// A change about no call.
    pub fn new(edit: &'static str, action: Action, bytes: Sizes) -> Self {
        let (call_id, handles) = (String::new(), Vec::new());
        Self { edit, action, call_id, tool_name: None, bytes, tokens: None, handles, why: None }
    }
}

impl Regrets {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.in_all == 0
    }
}

impl Plan {
    /// The bytes that it takes in memory, besides slices of the body.
    pub fn weight(&self) -> usize {
        // What a splice, a change and its allocations take, roughly.
        const EACH: usize = 320;
        if self.splices.is_empty() {
            return 0;
        }
        let n_parts = self.splices.len() + self.report.changes.len() + self.report.left_out.len();
        let written: usize = self.splices.iter().map(|splice| splice.with.len()).sum();
        n_parts * EACH + written + self.segments.len() * size_of::<PromptSegment>()
    }

    /// Whether the body goes on as it came.
    pub fn is_empty(&self) -> bool {
        self.splices.is_empty()
    }
}

impl Report {
    /// Sets the reason why no summary was used.
    pub fn set_summary_skip_reason(&mut self, why: SkipReason) {
        let summaries = self.left_out.iter_mut().filter(|left_out| left_out.why == SkipReason::NoSummary);
        summaries.for_each(|left_out| left_out.why = why);
    }

    /// The tokens that would be billed for the request as received, if so many are billed for it with the edits.
    pub fn received_tokens(&self, edited: u64) -> u64 {
        billed_after_change(edited, self.tokens_after.zip(self.tokens_before), (self.bytes_after, self.bytes_before))
    }

    /// The tokens that would be billed for the request with the edits, if so many are billed for it as received.
    pub fn edited_tokens(&self, received: u64) -> u64 {
        billed_after_change(received, self.tokens_before.zip(self.tokens_after), (self.bytes_before, self.bytes_after))
    }

    /// The label of each edit that changed something and how many changes it made, in policy order.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for change in &self.changes {
            match counts.last_mut().filter(|(edit, _)| *edit == change.edit) {
                Some((_, n)) => *n += 1,
                None => counts.push((change.edit, 1)),
            }
        }
        counts.extend(self.requests_cache.then_some(("cache", 1)));
        counts.extend(self.mends_tools.then_some(("tools", 1)));
        counts
    }

    /// Whether an edit changed something.
    pub fn has_edits(&self) -> bool {
        !self.changes.is_empty() || self.requests_cache || self.mends_tools
    }
}

/// The tokens that are billed after a change, if so many were before it. Counts leave out what is the same on both sides, so what
/// they differ by is added. Without counts, a token has as many bytes on both sides.
fn billed_after_change(billed: u64, counted: Option<(usize, usize)>, bytes: (usize, usize)) -> u64 {
    match (counted, bytes) {
        (Some((from, to)), _) => billed.saturating_add(to as u64).saturating_sub(from as u64),
        (None, (from, to)) => prorated(billed, to as u64, from as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(edit: &'static str, action: Action, call_id: &str, tool_name: Option<&str>) -> Change {
        Change {
            edit,
            action,
            call_id: call_id.to_owned(),
            tool_name: tool_name.map(str::to_owned),
            bytes: Sizes { before: 9, after: 8 },
            tokens: None,
            handles: Vec::new(),
            why: None,
        }
    }

    #[test]
    fn prints_a_line_a_change() {
        let report = Report {
            model: Some("m".to_owned()),
            changes: vec![
                change("patch", Action::Move { message: 4, behind: 1 }, "a", None),
                change("patch", Action::Drop { message: 5 }, "b\n", None),
                change("patch", Action::Insert { behind: 1 }, &"é".repeat(90), Some("bash")),
            ],
            messages_before: 6,
            messages_after: 6,
            bytes_before: 100,
            bytes_after: 120,
            ..Report::default()
        };
        let expected = format!(
            "messages 6 -> 6, bytes 100 -> 120, model \"m\"\n\
             patch: move message 4 behind message 1, call \"a\"\n\
             patch: drop message 5, call \"b\\n\"\n\
             patch: insert a result behind message 1, call \"{}\"… of tool \"bash\"\n",
            "é".repeat(80)
        );
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn prints_sizes_handles_and_what_was_left_out() {
        let mut cleared = change("clear", Action::Clear { message: 2 }, "a", Some("bash"));
        cleared.tokens = Some(Sizes { before: 3, after: 2 });
        cleared.handles = vec![PayloadKey::from_bytes([0; 16]); 2];
        let left_out =
            |message, why| SkippedChange { edit: "clear", message, call_id: "b".to_owned(), tool_name: None, why };
        let report = Report {
            changes: vec![cleared],
            left_out: vec![left_out(Some(4), SkipReason::NoStore), left_out(None, SkipReason::TooLittle)],
            unknown_window: true,
            tokens_before: Some(30),
            tokens_after: Some(20),
            ..Report::default()
        };
        let handle = "0".repeat(26);
        let expected = format!(
            "messages 0 -> 0, bytes 0 -> 0, tokens 30 -> 20\n\
             the context window of the model is not known\n\
             clear: clear message 2, call \"a\" of tool \"bash\", bytes 9 -> 8, tokens 3 -> 2, stored as {handle}, stored as {handle}\n\
             clear: not done to message 4, call \"b\": there is no store to take what is left out\n\
             clear: not done: it would free too little\n"
        );
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn nothing_to_do_says_so() {
        assert_eq!(Report::default().to_string(), "messages 0 -> 0, bytes 0 -> 0\nno changes\n");
    }

    #[test]
    fn each_action_and_each_reason_has_a_label_of_its_own() {
        let name = |of: &dyn std::fmt::Debug| format!("{of:?}").split(' ').next().unwrap_or_default().to_lowercase();
        for action in [
            Action::Insert { behind: 0 },
            Action::Move { message: 0, behind: 0 },
            Action::Drop { message: 0 },
            Action::DropCall { message: 0 },
            Action::Truncate { message: 0 },
            Action::Clear { message: 0 },
            Action::ClearInput { message: 0 },
            Action::Summarize { from: 0, to: 0 },
        ] {
            assert_eq!(action.label().replace('_', ""), name(&action));
        }
        for why in [
            SkipReason::NoStore,
            SkipReason::NotSmaller,
            SkipReason::TooLittle,
            SkipReason::NoSummary,
            SkipReason::Rewritten,
        ] {
            assert_eq!(<&str>::from(why).replace('_', ""), name(&why));
        }
    }

    #[test]
    fn counts_by_edit() {
        let drop = |edit| change(edit, Action::Drop { message: 0 }, "", None);
        let report = Report { changes: vec![drop("patch"), drop("patch"), drop("clear")], ..Report::default() };
        assert_eq!(report.counts(), [("patch", 2), ("clear", 1)]);
    }
}
