//! `summarize`: puts a summary in place of what a conversation began with when it has grown large.
//!
//! # What it does
//! When the `trigger` holds, all messages between the instructions at the beginning and a cut are summarised by a model, and
//! one user message replaces them: a lead-in, the summary, the user's own messages as far as there is room, results of a
//! skill tool if that is asked for, names that the rest uses and the summary leaves out, the way to the whole transcript, and
//! how to go on. Messages after the cut stay.
//!
//! # When it acts
//! When the size that the edits before have left reaches the `trigger`. A summary that was made once is remembered by the
//! messages that it replaces, and used for every conversation that begins with them, without a call. When the trigger
//! holds again, the next one is made from that summary and what has come since. A result that arrives late, for a call that a
//! summary replaces, reopens its round: that is sent beside the summary, until the next one replaces it too.
//!
//! # What the model sees
//! That the session goes on from an earlier one, what was summarised, and how to read the transcript.
//!
//! # What it never touches
//! Instructions at the beginning; what `keep` spares at the end; results that the model has not read yet; the inside of a
//! round. Without a summary the request goes on as the other edits have left it.

use std::{ops::Range, sync::Arc};

use self::cut::CutPoints;
use self::frame::Originals;
use super::trigger::{Limits, Moment, Part};
use super::{Edit, Language, SharedSettings};
use crate::conversation::{ElementIndex, UnitIndex};
use crate::draft::{Draft, Offload, ParsedRequest, Pass, SummaryTiming};
use crate::payload::{ChainKey, Fingerprint, MediaType};
use crate::plan::{Need, SkipReason, SummaryJob};
use crate::recall;
use crate::summary::{self, InputElement, Outline, OutlinedMessage, SummaryState, UsedNames};

pub use self::settings::{Endpoint, ErrorPattern, Mode, PreserveSkills, PreserveUserMessages, Retry, Settings};
pub use crate::summary::PromptMode;

pub mod answer;
mod cut;
pub mod fit;
pub mod frame;
pub mod instruction;
mod settings;

/// The part of the trigger from which a summary is made in the background, and at the beginning of a user's turn.
const EARLY: Part = Part(4, 5);

/// New messages are not worth a summary if they are less than this part of the conversation: a tenth.
const MIN_NEW: usize = 10;

/// A third of this many tokens is kept of the user's messages where no trigger says how many there may be.
const USUAL_TRIGGER: usize = 160_000;

/// The most bytes of a list of names that a summary leaves out; of a short conversation, an eighth, at four bytes a token.
const MAX_NAMES_BYTES: usize = 2048;

/// The edit.
#[derive(Debug)]
pub struct Summarize {
    settings: Settings,
    shared: Arc<SharedSettings>,
    /// What sets its summaries apart.
    pub(crate) scope: Scope,
    /// A shorter body is summarised only if that is asked for, whatever the model.
    least_bytes: usize,
}

/// What sets the summaries of one policy apart from those of another.
#[derive(Clone, Debug)]
pub struct Scope(String);

/// Raised when summaries that were made before must not be used any more. What only makes new ones read otherwise, such as
/// another instruction, does not raise it, and a setting that is new has no part in a scope while it has its default, so
/// that a release leaves the summaries of the one before in use.
const SCOPE_VERSION: u32 = 1;

impl Summarize {
    /// The short name of the edit.
    pub const LABEL: &'static str = "summary";

    /// The edit with its settings.
    pub fn new(settings: &Settings, shared: &Arc<SharedSettings>) -> Self {
        let scope = Scope::of(settings, shared.language, &shared.recall);
        let mut this = Self { settings: settings.clone(), shared: Arc::clone(shared), scope, least_bytes: 0 };
        this.least_bytes = this.early(settings.trigger.least_bytes());
        this
    }

    /// A shorter body is never summarised, unless it is asked for, if the model's window has so many tokens, or is not known.
    pub fn least_bytes_within(&self, window: Option<usize>) -> usize {
        self.early(self.settings.trigger.least_bytes_within(window))
    }

    /// The size from which the edit may act, in bytes or tokens, where its trigger holds from `least` on.
    fn early(&self, least: usize) -> usize {
        let may_be_early = self.settings.mode == Mode::Background || self.settings.when == Moment::Turn;
        if may_be_early { EARLY.of(least) } else { least }
    }

    /// Up to where is to be summarised, and whether that is being done already; or why nothing is.
    fn cut(&self, draft: &mut Draft<'_>, cuts: &CutPoints<'_>, now: bool) -> Result<(usize, bool), SkipReason> {
        let keep = self.settings.keep.resolved(draft);
        let prefix_keys = draft.prefix_keys(|| self.scope.of_model(draft.conversation.model.as_deref()));
        let longer: Vec<_> = prefix_keys.longer().map(|(end, known)| (end, known.clone())).collect();
        if !now && longer.iter().any(|(_, known)| matches!(known, SummaryState::CoolingDown)) {
            return Err(SkipReason::NoSummary);
        }
        let mut under_way = longer.iter().filter(|(_, known)| matches!(known, SummaryState::InProgress));
        if let Some(place) = under_way.find_map(|(end, _)| cuts.before(draft.view_unit(*end))) {
            return Ok((place, true));
        }
        let place = if draft.summarises_all() { cuts.last() } else { cuts.place(keep) };
        // A summary of one message would have no name.
        let place = place.filter(|_| prefix_keys.root().is_some()).ok_or(SkipReason::TooLittle)?;
        let new: usize = cuts.tokens.get(cuts.first_new..place).unwrap_or_default().iter().sum();
        let all = draft.base_tokens() + cuts.tokens.iter().sum::<usize>();
        if !now && new < all / MIN_NEW {
            return Err(SkipReason::TooLittle);
        }
        if self.settings.transcript && draft.context.offload == Offload::Impossible {
            return Err(SkipReason::NoStore);
        }
        Ok((place, false))
    }

    /// The job for a summary of all before a place.
    fn job(&self, draft: &Draft<'_>, cuts: &CutPoints<'_>, place: usize, budget_tokens: usize) -> Option<SummaryJob> {
        let end = match cuts.rows.get(place) {
            Some(row) => row.unit?,
            None => draft.conversation.next_unit(),
        };
        let units = draft.first_editable..draft.original_unit(end);
        let whole = draft.whole();
        let covers = ElementIndex::numbers(&whole.conversation.elements_of(units.clone()));
        let prefix_keys = draft.prefix_keys(|| self.scope.of_model(whole.conversation.model.as_deref()));
        let pieces = |rows: Range<usize>| {
            let tokens = cuts.tokens.get(rows.clone()).unwrap_or_default();
            let elements = draft.elements(cuts.rows.get(rows.clone()).unwrap_or_default()).into_iter();
            elements.map(move |(json, own)| {
                let opens = cuts.may_open(rows.start + own.start);
                let must_alternate = whole.dialect.facts().alternates && cuts.is_of_model(rows.start + own.start);
                InputElement { json, tokens: tokens.get(own).unwrap_or_default().iter().sum(), opens, must_alternate }
            })
        };
        let leading: Vec<_> = pieces(0..cuts.first).collect();
        let n_leading = leading.len();
        let originals = Originals { request: whole, units: units.clone() };
        let tokens = cuts.tokens.get(cuts.first..place)?.iter().sum();
        let transcript = self.settings.transcript.then(|| originals.transcript(draft));
        let read_by = |key| (key, draft.retrieval_words(key, MediaType::Text).into());
        let said = frame::FrameInput {
            user_texts: originals.user_texts(self.shared.language),
            skills: originals.skills(self.settings.preserve_skills.as_ref()),
            transcript: transcript.as_ref().map(|transcript| read_by(transcript.key)),
            gauge: draft.gauge(),
            budget_tokens,
        };
        // What a summary of so many tokens must not lose.
        let heading = &instruction::words(self.shared.language).names;
        Some(SummaryJob {
            key: prefix_keys.name(ElementIndex::new(covers.end))?,
            root: prefix_keys.root()?,
            waits: true,
            tokens_replaced: draft.original_tokens(draft.first_editable..end),
            factor: draft.gauge().factor,
            n_elements: whole.conversation.elements.len(),
            tokens,
            below_tokens: if draft.context.summarize == SummaryTiming::Whole { tokens.max(COMPACTED) } else { tokens },
            model: whole.conversation.model.clone().map(Into::into),
            source: summary::SummaryInput {
                body: whole.body.clone(),
                messages: leading.into_iter().chain(pieces(cuts.first..place)).collect(),
                n_leading,
                base_tokens: draft.base_tokens(),
            },
            frame: summary::Frame {
                names: UsedNames::find(heading, MAX_NAMES_BYTES.min(tokens / 2), &originals.name_sources()),
                ..frame::frame(&self.settings, self.shared.language, &said)
            },
            transcript,
            outline: outline(draft, prefix_keys.scope, covers.clone()),
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

/// A compaction that a client asks for may always have so many tokens: without one its request fails, even where the conversation
/// is shorter than a summary.
const COMPACTED: usize = 8000;

impl Edit for Summarize {
    fn counts_from(&self, window: Option<usize>) -> usize {
        self.least_bytes_within(window)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let now = draft.context.summarize != SummaryTiming::Triggered;
        if !now && draft.n_bytes < self.least_bytes {
            return;
        }
        let limits = self.settings.trigger.limits(draft);
        // What the model reasons while a summary is made would be bound to what the summary replaces.
        let is_background = self.settings.mode == Mode::Background && !draft.strips_reasoning();
        let begins_turn = self.settings.when == Moment::Turn && draft.begins_user_turn(draft.conversation.next_unit());
        let early = (is_background || begins_turn).then(|| limits.at(EARLY));
        let n_messages = draft.n_messages_at_most();
        if !now && !early.as_ref().unwrap_or(&limits).hold(draft.n_bytes, n_messages) {
            return;
        }
        if let Some(why) = draft.skip_reason(Pass::Summarize) {
            return draft.skip_change(Self::LABEL, None, why);
        }
        let rows = draft.rows();
        let tokens: Vec<_> = rows.iter().map(|row| draft.tokens_of(row)).collect();
        let size = draft.base_tokens() + tokens.iter().sum::<usize>();
        let holds = |limits: &Limits| limits.hold(size, draft.n_elements(&rows));
        if !now && !draft.may_pass(draft.conversation.next_unit(), size) {
            return;
        }
        let nearly = early.as_ref().is_some_and(holds);
        let due = now || holds(&limits) || (begins_turn && nearly);
        if !due && !nearly {
            return;
        }
        let is_own = |unit: UnitIndex| {
            let text = draft.conversation.unit(unit).and_then(|unit| draft.request().text(unit));
            text.is_some_and(|text| frame::is_own(&text, self.shared.language))
        };
        let cuts = CutPoints::new(draft, &rows, &tokens, is_own);
        let mut why = SkipReason::NoSummary;
        if draft.need.is_none() {
            match self.cut(draft, &cuts, now) {
                Err(other) => {
                    why = other;
                    if let Some(unit) = cuts.blocking.filter(|_| due && why == SkipReason::TooLittle) {
                        draft.note_blocking(unit);
                    }
                }
                Ok((_, true)) if !due => {}
                Ok(_) if draft.root.is_some() => draft.need = Some(Need::LookUp),
                Ok((place, _)) => {
                    let job = self.job(draft, &cuts, place, self.budget(&limits));
                    draft.need = job.map(|job| Need::Make(Box::new(SummaryJob { waits: due, ..job })));
                }
            }
        }
        if due {
            draft.skip_change(Self::LABEL, None, why);
        }
    }
}

/// The elements of the conversation as it came that a summary will replace.
fn outline(draft: &Draft<'_>, scope: ChainKey, covers: Range<usize>) -> Outline {
    let ParsedRequest { dialect, body, conversation } = draft.whole();
    let is_folded =
        |element: usize| draft.is_folded(draft.view_unit(conversation.first_unit(ElementIndex::new(element))));
    let n_summarised = covers.clone().take_while(|element| is_folded(*element)).count();
    let message = |index: usize| {
        let element = conversation.elements.get(index);
        let span = element.map(|element| element.span).unwrap_or_default();
        let pieces = dialect.canonical(span.of(body)).into_iter();
        let print = pieces.fold(Fingerprint::default(), |known, piece| known.then(Fingerprint::of(piece)));
        let units = element.filter(|_| !is_folded(index)).into_iter().flat_map(|of| UnitIndex::each(&of.units));
        let tokens = units.map(|unit| draft.view_unit(unit)).map(|unit| draft.original_tokens(unit..unit.next())).sum();
        OutlinedMessage { print, tokens }
    };
    let n_elements = conversation.elements.len();
    Outline { scope, first: covers.start, n_elements, n_summarised, messages: covers.map(message).collect() }
}

impl Scope {
    /// All settings that shape a summary, and none that only say when one is made, up to where, or how that is tried.
    fn of(settings: &Settings, language: Language, recall: &recall::Settings) -> Self {
        #[rustfmt::skip]
        let Settings {
            trigger: _, when: _, keep: _, mode: _, timeout: _, cooldown: _, retry: _, failover: _,
            input, instruction, max_tokens, preserve_user_messages,
            preserve_skills, transcript, model, input_handler, finalize_handler,
        } = settings;
        #[rustfmt::skip]
        let recall::Settings {
            auth: _, controls: _, tool: _,
            via, public_url, export_dir, reader_tool, reader_tools, shell_tools,
        } = recall;
        // With what settings that were removed had by default, so that summaries stay in use.
        let asked = ("model", input, instruction, None::<&str>, max_tokens, model);
        let kept = (None::<&str>, None::<&str>, preserve_user_messages, preserve_skills, transcript);
        let recall = (via, public_url, export_dir, reader_tool, reader_tools, shell_tools);
        let shaping = (SCOPE_VERSION, language, asked, kept, recall);
        let scope = serde_json::to_string(&shaping).unwrap_or_else(|_| format!("{shaping:?}"));
        // Without handlers it is what it was in earlier versions, so that their summaries stay in use.
        Self(match (input_handler, finalize_handler) {
            (None, None) => scope,
            handlers => format!("{scope}{handlers:?}"),
        })
    }

    /// The same for the conversations of one model.
    pub fn of_model(&self, model: Option<&str>) -> Vec<u8> {
        [self.0.as_bytes(), b"\0", model.unwrap_or_default().as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests;
