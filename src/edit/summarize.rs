//! `summarize`: puts a summary in place of what a conversation began with when it has grown large.
//!
//! # What it does
//! When the `trigger` holds, all messages between the instructions at the beginning and a cut are summarised by a model, and
//! one user message stands for them: a lead-in, the summary, the user's own messages as far as there is room, results of a
//! skill tool if that is asked for, the way to the whole transcript, and how to go on. What is behind the cut stays.
//!
//! # When it acts
//! When the size that the edits before have left reaches the `trigger`. A summary that was made once is remembered by the
//! messages that it stands for, and used for every conversation that begins with them, without a call. When the trigger
//! holds again, the next one is made from that summary and what has come since. A result that comes late, for a call that a
//! summary stands for, reopens its round: that is sent beside the summary, until the next one stands for it too.
//!
//! # What the model sees
//! That the session goes on from an earlier one, what was summarised, and how to read the transcript.
//!
//! # What it never touches
//! Instructions at the beginning; what `keep` spares at the end; results that the model has not read yet; the inside of a
//! round. Without a summary the request goes on as the other edits have left it.

use std::{ops::Range, path::PathBuf};

use serde::{Deserialize, Serialize};

use self::{cut::CutPoints, originals::Originals};
use super::{
    Edit, Language,
    keep::Keep,
    trigger::{Condition, Limits, Trigger},
};
use crate::{
    draft::{Draft, ParsedRequest, Pass, Row},
    payload::{ChainKey, Fingerprint},
    plan::{Need, SkipReason, SummaryJob},
    recall,
    summary::{self, InputElement, Outline, OutlinedMessage, SummaryState},
    units::{Fraction, Period},
};

pub use crate::summary::PromptMode;

pub mod answer;
mod cut;
pub mod fit;
pub mod frame;
pub mod instruction;
mod originals;

/// `[summarize]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When a summary is made, after the other edits have run: conditions as in `clear_tool_results.trigger`.
    pub trigger: Trigger,
    /// What is not summarised, of what the model has read, counted from the newest backwards: exactly one of `results`,
    /// `rounds`, `tokens`, `fraction`. The newest user message stays with everything behind it if that is no more than
    /// this. What the model has not read always stays, and does not count.
    pub keep: Keep,
    /// Whether the request that reaches the trigger waits for the summary.
    pub mode: Mode,
    /// What the model that summarises is given.
    pub input: PromptMode,
    /// What the model that summarises is told to do. Excludes `instruction_file`.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"Summarise this conversation."`
    pub instruction: Option<String>,
    /// A file with that text.
    ///
    /// Not set: no file is read.
    ///
    /// Example: `"instruction.txt"`
    pub instruction_file: Option<PathBuf>,
    /// The first sentence of the message that holds the summary.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"This session goes on from an earlier one."`
    pub lead_in: Option<String>,
    /// The last sentence of that message, which tells the model to continue.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"Go on where it stopped."`
    pub continuation: Option<String>,
    /// The most tokens of a summary. Allowed: 1 or more.
    ///
    /// Not set: 8192, or a quarter of the model's context window if that is less.
    ///
    /// Example: `8192`
    pub max_tokens: Option<usize>,
    /// The user's own messages, which stay word for word, the newest first. The first one that does not fit keeps its
    /// two ends.
    pub preserve_user_messages: PreserveUserMessages,
    /// Results of a tool that loads skills, which stay word for word. Without this table none do.
    pub preserve_skills: Option<PreserveSkills>,
    /// Stores what is summarised, one message per line, for the model to read. With `true`, no summary is made without
    /// a store.
    pub transcript: bool,
    /// How long all attempts for one summary may take together; then the request goes on without it. A waiting client
    /// receives nothing meanwhile, so this must be shorter than the client's own time-out. Allowed: 1ms to 365d.
    pub timeout: Period,
    /// How long no summary is tried for the same messages after one could not be made. Allowed: 0ms to 365d.
    pub cooldown: Period,
    /// How failed calls are repeated.
    pub retry: Retry,
    /// The model that summarises. Without this table it is the model of the request, at the upstream, with the key of
    /// the request. A model that is named here is sent no header field of the client.
    pub model: Option<Endpoint>,
    /// Models that are asked when that has failed, in this order; any number of these tables.
    pub failover: Vec<Endpoint>,
}

/// Whether the request that crosses the trigger waits for the summary.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The request waits, for `timeout` at most.
    #[default]
    Blocking,
    /// The summary is made from four fifths of the trigger on, while the conversation continues. A request waits only
    /// if it reaches the trigger before the summary is there.
    Background,
}

/// `[summarize.preserve_user_messages]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreserveUserMessages {
    /// Whether they are kept.
    pub enabled: bool,
    /// The most tokens of all of them together.
    ///
    /// Not set: a third of the tokens of `summarize.trigger`.
    ///
    /// Example: `53333`
    pub max_tokens: Option<usize>,
}

/// `[summarize.preserve_skills]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreserveSkills {
    /// The tool. Its argument `skill` names the skill.
    pub tool: String,
    /// The most skills that are kept, the newest first.
    pub max_skills: usize,
    /// The most tokens of one skill.
    pub max_tokens_per_skill: usize,
    /// The most tokens of all skills together.
    pub budget: usize,
}

/// `[summarize.retry]`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// How often a call is repeated with one model, where that may help: after 1 s, 2 s, 4 s, each time up to half as
    /// long again, or after what `retry-after` says, up to 30 s. Allowed: 0 to 100.
    pub max_retries: usize,
}

/// A model that summarises.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Where the model is served.
    ///
    /// Example: `"https://api.openai.com/v1"`
    pub base_url: String,
    /// The name of the model.
    ///
    /// Example: `"gpt-4o-mini"`
    pub model: String,
    /// The name of the environment variable with the key for it.
    ///
    /// Not set: no key is sent.
    ///
    /// Example: `"SUMMARY_API_KEY"`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let tokens = Condition { tokens: Some(160_000), ..Condition::default() };
        let window = Condition { fraction: Fraction::new(0.8), ..Condition::default() };
        Self {
            trigger: Trigger(vec![tokens, window]),
            keep: Keep::Rounds(1),
            mode: Mode::Blocking,
            input: PromptMode::Cached,
            instruction: None,
            instruction_file: None,
            lead_in: None,
            continuation: None,
            max_tokens: None,
            preserve_user_messages: PreserveUserMessages::default(),
            preserve_skills: None,
            transcript: true,
            timeout: Period::secs(60),
            cooldown: Period::secs(60),
            retry: Retry::default(),
            model: None,
            failover: Vec::new(),
        }
    }
}

impl Default for PreserveUserMessages {
    fn default() -> Self {
        Self { enabled: true, max_tokens: None }
    }
}

impl Default for PreserveSkills {
    fn default() -> Self {
        Self { tool: "skill".to_owned(), max_skills: 5, max_tokens_per_skill: 5000, budget: 25_000 }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 3 }
    }
}

/// What no summary stands for yet is not worth one if it is less than this part of the conversation: a tenth.
const MIN_NEW: usize = 10;

/// A third of this many tokens is kept of the user's messages where no trigger says how many there may be.
const USUAL_TRIGGER: usize = 160_000;

/// Of the name of a field so many bytes are kept.
const MAX_NAME: usize = 64;

/// The edit.
#[derive(Debug)]
pub struct Summarize {
    settings: Settings,
    language: Language,
    scope: Scope,
}

/// What sets the summaries of one policy apart from those of another.
#[derive(Clone, Debug)]
pub struct Scope(String);

/// Raised when the same settings make another message of a summary than before. A setting that is new has no part in a
/// scope while it has its default, so that a release leaves the summaries of the one before in use.
const SCOPE_VERSION: u32 = 1;

/// The rows of a conversation, and what they weigh.
#[derive(Debug)]
struct MeasuredRows {
    rows: Vec<Row>,
    tokens: Vec<usize>,
    /// All tokens of the request.
    size: usize,
}

impl Summarize {
    /// The short name of the edit.
    pub const LABEL: &'static str = "summary";

    /// The edit with its settings. `recall` and the language shape what stands around a summary.
    pub fn new(settings: &Settings, language: Language, recall: &recall::Settings) -> Self {
        Self { settings: settings.clone(), language, scope: Scope::of(settings, language, recall) }
    }

    /// A shorter body is never summarised, unless somebody asks for it.
    pub fn least_bytes(&self) -> usize {
        let least = self.settings.trigger.least_bytes();
        match self.settings.mode {
            Mode::Blocking => least,
            Mode::Background => least - least / 5,
        }
    }

    /// What sets its summaries apart.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Up to where is to be summarised, and whether that is being done already; or why nothing is.
    fn cut(
        &self,
        draft: &mut Draft<'_>,
        cuts: &CutPoints<'_>,
        measured: &MeasuredRows,
        now: bool,
    ) -> Result<(usize, bool), SkipReason> {
        let keep = self.settings.keep.resolved(draft);
        let prefix_keys = draft.prefix_keys(|| self.scope.of_model(draft.conversation().model.as_deref()));
        let longer: Vec<_> = prefix_keys.longer().map(|(end, known)| (end, known.clone())).collect();
        if !now && longer.iter().any(|(_, known)| matches!(known, SummaryState::CoolingDown)) {
            return Err(SkipReason::NoSummary);
        }
        let mut under_way = longer.iter().filter(|(_, known)| matches!(known, SummaryState::InProgress));
        if let Some(place) = under_way.find_map(|(end, _)| cuts.before(draft.view_unit(*end))) {
            return Ok((place, true));
        }
        let place = cuts.place(keep).ok_or(SkipReason::TooLittle)?;
        let new: usize = measured.tokens.get(cuts.first_new()..place).unwrap_or_default().iter().sum();
        if !now && new < measured.size / MIN_NEW {
            return Err(SkipReason::TooLittle);
        }
        if self.settings.transcript && !draft.can_store() {
            return Err(SkipReason::NoStore);
        }
        Ok((place, false))
    }

    /// What is needed for the summary of all before a place.
    fn job(
        &self,
        draft: &Draft<'_>,
        cuts: &CutPoints<'_>,
        measured: &MeasuredRows,
        place: usize,
        budget_tokens: usize,
    ) -> Option<SummaryJob> {
        let end = measured.rows.get(place)?.unit?;
        let units = draft.n_leading()..draft.original_unit(end);
        let whole = draft.whole();
        let covers = whole.conversation.elements_of(units.clone());
        let prefix_keys = draft.prefix_keys(|| self.scope.of_model(whole.conversation.model.as_deref()));
        let pieces = |rows: Range<usize>| {
            let tokens = measured.tokens.get(rows.clone()).unwrap_or_default();
            draft.elements(measured.rows.get(rows.clone()).unwrap_or_default()).into_iter().map(move |(json, own)| {
                InputElement {
                    json,
                    tokens: tokens.get(own.clone()).unwrap_or_default().iter().sum(),
                    opens: cuts.may_part(rows.start + own.start),
                }
            })
        };
        let leading: Vec<_> = pieces(0..cuts.first()).collect();
        let n_leading = leading.len();
        let originals = Originals { request: whole, units: units.clone() };
        let transcript = self.settings.transcript.then(|| originals.transcript(draft));
        Some(SummaryJob {
            key: prefix_keys.name(covers.end)?,
            root: prefix_keys.root()?,
            waits: true,
            tokens_replaced: draft.original_tokens(draft.n_leading()..end),
            n_elements: whole.conversation.elements.len(),
            tokens: measured.tokens.get(cuts.first()..place)?.iter().sum(),
            model: whole.conversation.model.clone().map(Into::into),
            source: summary::SummaryInput {
                body: whole.body.clone(),
                messages: leading.into_iter().chain(pieces(cuts.first()..place)).collect(),
                n_leading,
                base_tokens: draft.base_tokens(),
            },
            frame: frame::frame(
                &self.settings,
                self.language,
                &frame::FrameInput {
                    user_texts: originals.user_texts(),
                    skills: originals.skills(self.settings.preserve_skills.as_ref()),
                    transcript: transcript.as_ref().map(|job| (job.key, draft.retrieval_words(job.key).into())),
                    gauge: draft.gauge(),
                    budget_tokens,
                },
            ),
            transcript,
            outline: outline(draft, prefix_keys.scope(), covers.clone()),
            covers,
        })
    }

    /// How many tokens of the user's own messages are kept.
    fn budget(&self, limits: &Limits) -> usize {
        let own = self.settings.preserve_user_messages.max_tokens;
        own.unwrap_or_else(|| match limits.least_tokens() {
            0 => USUAL_TRIGGER / 3,
            tokens => tokens / 3,
        })
    }
}

impl Edit for Summarize {
    fn name(&self) -> &'static str {
        "summarize"
    }

    fn label(&self) -> &'static str {
        "summary"
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let now = draft.is_summary_requested();
        if !now && draft.n_bytes() < self.least_bytes() {
            return;
        }
        let limits = self.settings.trigger.limits(draft);
        // What the model reasons while a summary is made would be bound to what the summary replaces.
        let is_background = self.settings.mode == Mode::Background && !draft.strips_reasoning();
        let early = is_background.then(|| limits.nearly());
        let n_messages = draft.conversation().elements.len() + draft.n_added();
        if !now && !early.as_ref().unwrap_or(&limits).may_hold(draft.n_bytes(), n_messages) {
            return;
        }
        if let Some(why) = draft.skip_reason(Pass::Summarize) {
            return draft.skip_change(self.label(), None, why);
        }
        let measured = MeasuredRows::of(draft);
        let holds = |limits: &Limits| limits.hold(measured.size, draft.n_elements(&measured.rows));
        if !now && !draft.may_pass(draft.conversation().units.len(), measured.size) {
            return;
        }
        let due = now || holds(&limits);
        if !due && !early.as_ref().is_some_and(holds) {
            return;
        }
        let cuts = CutPoints::new(draft, &measured.rows, &measured.tokens);
        let mut why = SkipReason::NoSummary;
        if !draft.has_need() {
            match self.cut(draft, &cuts, &measured, now) {
                Err(other) => why = other,
                Ok((_, true)) if !due => {}
                Ok((place, _)) => {
                    let job = self.job(draft, &cuts, &measured, place, self.budget(&limits));
                    if let Some(job) = job {
                        draft.set_need(Need::Make(Box::new(SummaryJob { waits: due, ..job })));
                    }
                }
            }
        }
        if due {
            draft.skip_change(self.label(), None, why);
        }
    }
}

/// The elements of the conversation as it came that a summary will stand for.
fn outline(draft: &Draft<'_>, scope: ChainKey, covers: Range<usize>) -> Outline {
    let ParsedRequest { dialect, body, conversation } = draft.whole();
    let is_folded = |element: usize| draft.is_folded(draft.view_unit(conversation.first_unit(element)));
    let n_summarised = covers.clone().take_while(|element| is_folded(*element)).count();
    let message = |index: usize| {
        let element = conversation.elements.get(index);
        let span = element.map(|element| element.span).unwrap_or_default();
        let value = |pieces: Vec<&[u8]>| {
            pieces.into_iter().fold(Fingerprint::default(), |known, piece| known.then(Fingerprint::of(piece)))
        };
        let name = |name: &str| name.get(..name.floor_char_boundary(MAX_NAME)).unwrap_or_default().into();
        let fields = dialect.fields(span.of(body)).into_iter().map(|field| (name(field.name), value(field.value)));
        let units = element.map(|element| element.units.clone()).filter(|_| !is_folded(index)).unwrap_or_default();
        let tokens = units.map(|unit| draft.view_unit(unit)).map(|unit| draft.original_tokens(unit..unit + 1)).sum();
        OutlinedMessage { fields: fields.collect(), tokens }
    };
    Outline { scope, first: covers.start, n_summarised, messages: covers.map(message).collect() }
}

impl Scope {
    /// All settings that shape a summary, and none that only say when one is made, up to where, or how that is tried.
    fn of(settings: &Settings, language: Language, recall: &recall::Settings) -> Self {
        #[rustfmt::skip]
        let Settings {
            trigger: _, keep: _, mode: _, timeout: _, cooldown: _, retry: _, failover: _,
            input, instruction, instruction_file, lead_in, continuation, max_tokens, preserve_user_messages,
            preserve_skills, transcript, model,
        } = settings;
        let recall::Settings { require_auth: _, via, public_url, export_dir, reader_tool, reader_tools, shell_tools } =
            recall;
        let asked = (input, instruction, instruction_file, max_tokens, model);
        let kept = (lead_in, continuation, preserve_user_messages, preserve_skills, transcript);
        let recall = (via, public_url, export_dir, reader_tool, reader_tools, shell_tools);
        let shaping = (SCOPE_VERSION, language, asked, kept, recall);
        Self(serde_json::to_string(&shaping).unwrap_or_else(|_| format!("{shaping:?}")))
    }

    /// The same for the conversations of one model.
    pub fn of_model(&self, model: Option<&str>) -> Vec<u8> {
        [self.0.as_bytes(), b"\0", model.unwrap_or_default().as_bytes()].concat()
    }
}

impl MeasuredRows {
    fn of(draft: &Draft<'_>) -> Self {
        let rows = draft.rows();
        let tokens: Vec<_> = rows.iter().map(|row| draft.tokens_of(row)).collect();
        let size = draft.base_tokens() + tokens.iter().sum::<usize>();
        Self { rows, tokens, size }
    }
}

#[cfg(test)]
mod tests;
