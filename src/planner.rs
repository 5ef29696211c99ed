//! The policy: which edits run, in which order; and the plan that they make of one request.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

pub use self::learnt_forms::LearntForms;
use self::{request::counts_from, verified::VerifiedMessages};

use crate::conversation::Fold;
use crate::dialect::{Dialect, Form, ParseError};
use crate::draft::reasoning::{self, ReasoningMode};
use crate::draft::{Draft, Leaving, ParsedRequest};
use crate::edit::clear_tool_results::{self, AtLeast, ClearToolResults, Frontier, Inputs};
use crate::edit::deduplicate_tool_results::{self, DeduplicateToolResults};
use crate::edit::filter_tool_calls::{self, FilterToolCalls};
use crate::edit::own_texts::OwnTexts;
use crate::edit::patch_tool_calls::{self, PatchToolCalls};
use crate::edit::request_prompt_cache::{self, RequestPromptCache};
use crate::edit::summarize::{self, Summarize};
use crate::edit::tools::{self, Tools};
use crate::edit::trigger::{Condition, Keep, MIN_WINDOW, Moment, Trigger};
use crate::edit::truncate_tool_results::{self, TruncateToolResults};
use crate::edit::{Edit, Language, SharedSettings};
use crate::handler::{self, AnswerFault, HandlerAsk, NoAnswers};
use crate::payload::{Caller, Keys};
use crate::plan::Plan;
use crate::recall::{self, Via};
use crate::string_index::StringIndex;
use crate::summary::{NoSummaries, SummaryIndex};
use crate::tokens::prices::{self, PriceList};
use crate::tokens::{self, Meter, models};

pub use crate::draft::{
    Calibration, ColdPasses, FactorIndex, LookUp, Offload, PlanContext, Sent, SentIndex, SummaryTiming,
};

mod learnt_forms;
mod request;
mod verified;

/// All settings that plans depend on: the tables of `proxy.toml` that say what is edited, each under its own name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanSettings {
    /// The language of the texts that are written.
    pub language: Language,
    /// Which edits run.
    pub policy: Settings,
    /// How what was taken out is got back.
    pub recall: recall::Settings,
    /// The edit that gives every tool call its result.
    pub patch_tool_calls: patch_tool_calls::Settings,
    /// The edit that leaves out the oldest calls.
    pub filter_tool_calls: filter_tool_calls::Settings,
    /// The edit that cuts long results.
    pub truncate_tool_results: truncate_tool_results::Settings,
    /// The edit that clears old results.
    pub clear_tool_results: clear_tool_results::Settings,
    /// The edit that replaces repeated lines with pointers to them.
    pub deduplicate_tool_results: deduplicate_tool_results::Settings,
    /// The edit that puts a summary in place of old messages.
    pub summarize: summarize::Settings,
    /// The edit that asks for the prompt cache.
    pub request_prompt_cache: request_prompt_cache::Settings,
    /// What becomes of reasoning that is bound to its prefix.
    pub reasoning: reasoning::Settings,
    /// Settings of single tools.
    pub tools: tools::Settings,
    /// The programs that edits ask.
    pub handlers: handler::Settings,
    /// How tokens are counted.
    pub tokens: tokens::Settings,
    /// What models take, and how they split text, where it is not known otherwise.
    pub models: Vec<models::Settings>,
    /// What tokens cost.
    pub prices: Vec<prices::Settings>,
    /// The host of the upstream, for its prices; empty if it is not known.
    pub upstream: String,
}

/// `[policy]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The edits that run, in this order, each at most once. An edit that is not listed is off.
    #[default(<EditName as strum::VariantArray>::VARIANTS.to_vec())]
    pub edits: Vec<EditName>,
    /// Where they are not set, it sets `trigger`, `keep` and `keep_reads` of `clear_tool_results`, whether
    /// `deduplicate_tool_results` makes pointers, and `reasoning.ended_turns`. The documentation of policies has the figures.
    pub goal: Goal,
    /// Forms that are applied to every request, after all edits. `[second_try]` learns from refusals which forms an upstream
    /// requires.
    ///
    /// Example: `["filled"]`
    pub forms: Vec<Form>,
    /// Forms that refusals have taught.
    #[serde(skip)]
    pub learnt: LearntForms,
}

/// The aim of a policy.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The model rarely misses what was cleared.
    Careful,
    /// Between the two.
    #[default]
    Balanced,
    /// Requests cost the least.
    Thrifty,
}

/// The edits there are, by the names that `edits = [...]` takes, in the order in which they run if nothing else is said: cheap
/// ones first, and first of all what makes rounds whole.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, strum::IntoStaticStr, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EditName {
    /// Gives every tool call exactly one result.
    PatchToolCalls,
    /// Leaves out the oldest tool calls and their results; off until `max_tool_calls` is set.
    FilterToolCalls,
    /// Cuts the middle out of long results.
    TruncateToolResults,
    /// Replaces old results with placeholders.
    ClearToolResults,
    /// Replaces lines of results that an earlier message has with pointers to them. It runs after the edits above, whatever
    /// its place in the list.
    DeduplicateToolResults,
    /// Replaces old messages with a summary, after the edits above.
    Summarize,
    /// Asks for the prompt cache where the client does not.
    RequestPromptCache,
}

/// Plans by settings: the one way from settings to a [`PlanContext`], for the proxy and for the commands that plan without
/// one.
#[derive(Debug)]
pub struct Planner {
    /// The settings.
    pub settings: PlanSettings,
    /// Which edits run.
    pub policy: Policy,
    /// Counts tokens.
    pub meter: Meter,
    /// Name payloads.
    pub keys: Keys,
    /// Whether what is taken out can be stored.
    pub offload: Offload,
    /// What models cost.
    pub rates: PriceList,
}

/// Of shorter bodies, in bytes, nothing is looked up that other processes know, unless they reach the trigger.
const LOOK_UP_FROM: usize = 16 << 10;

/// The edits that run on each request, in order.
#[derive(Debug)]
pub struct Policy {
    settings: PlanSettings,
    names: Vec<EditName>,
    edits: Vec<Arc<dyn Edit>>,
    /// The edit whose summaries are remembered, if any are used.
    summarize: Option<Arc<Summarize>>,
    /// A body shorter than this many bytes is never tokenised, so it may be planned where nothing may take long.
    pub counts_from: usize,
    shared: Arc<SharedSettings>,
    verified: VerifiedMessages,
}

impl PlanSettings {
    /// The same settings, except for a policy that makes a conversation as short as it can: all results that the model has read
    /// are cleared, and all images of the user that it has answered.
    #[must_use]
    pub fn shortest(&self) -> Self {
        let mut settings = self.with_forms(&[Form::NewImages]);
        let clear = &mut settings.clear_tool_results;
        clear.trigger = Trigger(vec![Condition::tokens(0)]);
        clear.keep = Keep::Results(0);
        clear.clear_at_least = Some(AtLeast::Tokens(0));
        clear.when = Some(Moment::Any);
        clear.keep_reads = 0;
        clear.frontier = Frontier::Sliding;
        let edits = &mut settings.policy.edits;
        if !edits.contains(&EditName::ClearToolResults) {
            let end = edits.iter().position(|edit| *edit == EditName::Summarize).unwrap_or(edits.len());
            edits.insert(end, EditName::ClearToolResults);
        }
        settings
    }

    /// The same settings, with more forms.
    #[must_use]
    pub fn with_forms(&self, forms: &[Form]) -> Self {
        let mut settings = self.clone();
        settings.policy.add_forms(forms);
        settings
    }

    /// The same settings, with these forms that refusals have taught.
    #[must_use]
    pub fn with_learnt_forms(&self, learnt: &LearntForms) -> Self {
        let mut settings = self.clone();
        settings.policy.learnt = learnt.clone();
        settings
    }

    /// The same settings for edits of texts alone, in a part of a conversation. Each new text says how to read the original
    /// `via` that way.
    #[must_use]
    pub fn in_place(&self, via: Via) -> Self {
        let mut settings = self.clone();
        settings.policy.forms.clear();
        settings.policy.learnt = LearntForms::default();
        settings.policy.edits.retain(|edit| matches!(edit, EditName::TruncateToolResults | EditName::ClearToolResults));
        settings.recall.via = via;
        settings.reasoning.bound = ReasoningMode::Withhold;
        let clear = &mut settings.clear_tool_results;
        (clear.clear_media, clear.clear_tool_inputs, clear.offload) = (false, Inputs::Whether(false), true);
        for text in [&mut clear.placeholder, &mut settings.truncate_tool_results.notice] {
            text.take_if(|text| !text.contains("{how}"));
        }
        settings
    }

    /// The same settings, with the edit that repairs sequences alone.
    #[must_use]
    pub fn repairing(&self) -> Self {
        let policy = Settings { edits: vec![EditName::PatchToolCalls], ..Settings::default() };
        let patch_tool_calls = patch_tool_calls::Settings { handler: None, ..self.patch_tool_calls.clone() };
        Self { policy, patch_tool_calls, ..self.clone() }
    }

    /// The same settings, except for reasoning: whatever the model, passes leave out what precedes them, and Gemini's has no
    /// signatures.
    #[must_use]
    pub fn stripping(&self) -> Self {
        let models = vec![models::Pattern::new("*")];
        let reasoning = reasoning::Settings { models, ..Default::default() };
        Self { reasoning, ..self.with_forms(&[Form::NewSignatures]) }
    }
}

impl Planner {
    /// A planner for settings alone: it counts with its own meter and names payloads with [`Keys::well_known`].
    pub fn new(settings: PlanSettings) -> Self {
        let meter = Meter::new(&settings.tokens, &settings.models);
        Self::with(settings, meter, Keys::well_known(), Offload::Possible)
    }

    /// A planner that counts with this meter and names payloads with these keys.
    pub fn with(settings: PlanSettings, meter: Meter, keys: Keys, offload: Offload) -> Self {
        let rates = PriceList::new(&settings.prices, &settings.models, &settings.upstream);
        Self { policy: Policy::new(&settings), settings, meter, keys, offload, rates }
    }

    /// The meter, with context windows that were recorded; settings override these.
    pub fn meter_with(&self, windows: &BTreeMap<String, usize>) -> Meter {
        if windows.is_empty() {
            return self.meter.clone();
        }
        let meter = Meter::new(&self.settings.tokens, &self.settings.models);
        for (model, window) in windows {
            meter.models().learn(model, *window);
        }
        meter
    }

    /// A planner for other settings that shares the meter and the keys.
    #[must_use]
    pub fn under(&self, settings: PlanSettings) -> Self {
        Self::with(settings, self.meter.clone(), self.keys.clone(), self.offload)
    }

    /// The situation of a request of `caller`, with what is remembered of summaries.
    pub fn context<'a>(&'a self, caller: Caller, summaries: &'a dyn SummaryIndex) -> PlanContext<'a> {
        PlanContext {
            strings: StringIndex::EMPTY,
            meter: &self.meter,
            calibration: Calibration::Table,
            keys: &self.keys,
            caller,
            offload: self.offload,
            summaries,
            look_up: LookUp::Done,
            summarize: SummaryTiming::Triggered,
            cold_passes: ColdPasses::At(&[]),
            sent: Sent::Assumed,
            strips_now: false,
            in_place: None,
            answers: &NoAnswers,
        }
    }

    /// The situation of a request without a credential.
    pub fn anonymous<'a>(&'a self, summaries: &'a dyn SummaryIndex) -> PlanContext<'a> {
        self.context(self.keys.anonymous(), summaries)
    }

    /// The plan for such a request, where no summary is remembered.
    pub fn plan(&self, dialect: &dyn Dialect, body: &Bytes) -> Result<Plan, ParseError> {
        self.policy.plan(dialect, body, &self.anonymous(&NoSummaries))
    }
}

impl Policy {
    /// The edits that `settings.policy` lists.
    pub fn new(settings: &PlanSettings) -> Self {
        let mut names = settings.policy.edits.clone();
        // Pointers lead to messages that other edits have left as they came, and summaries are made of what all have left.
        names.sort_by_key(|name| match name {
            EditName::DeduplicateToolResults => 1,
            EditName::Summarize | EditName::RequestPromptCache => 2,
            _ => 0,
        });
        let language = settings.language;
        let [cleared, cleared_media] = settings.clear_tool_results.templates(language);
        let shared = &Arc::new(SharedSettings {
            tools: Tools::new(&settings.tools),
            own_texts: OwnTexts {
                missing: settings.patch_tool_calls.template(language),
                truncated: settings.truncate_tool_results.template(language),
                cleared,
                cleared_media,
            },
            recall: settings.recall.clone(),
            language,
            handlers: settings.handlers.keys().map(|name| name.as_str().into()).collect(),
        });
        let mut summarize = None;
        let edit = |name: &EditName| -> Arc<dyn Edit> {
            match name {
                EditName::PatchToolCalls => Arc::new(PatchToolCalls::new(&settings.patch_tool_calls, shared)),
                EditName::FilterToolCalls => Arc::new(FilterToolCalls::new(&settings.filter_tool_calls)),
                EditName::TruncateToolResults => {
                    Arc::new(TruncateToolResults::new(&settings.truncate_tool_results, shared))
                }
                EditName::ClearToolResults => {
                    let prices = PriceList::new(&settings.prices, &settings.models, &settings.upstream);
                    Arc::new(ClearToolResults::new(&settings.clear_tool_results, prices, shared))
                }
                EditName::DeduplicateToolResults => {
                    Arc::new(DeduplicateToolResults::new(&settings.deduplicate_tool_results, shared))
                }
                EditName::RequestPromptCache => {
                    Arc::new(RequestPromptCache::new(&settings.request_prompt_cache, &settings.upstream))
                }
                EditName::Summarize => summarize.insert(Arc::new(Summarize::new(&settings.summarize, shared))).clone(),
            }
        };
        let edits: Vec<_> = names.iter().map(edit).collect();
        let counts_from = counts_from(&edits, Some(MIN_WINDOW)).min(counts_from(&edits, None));
        Self {
            settings: settings.clone(),
            names,
            edits,
            summarize,
            counts_from,
            shared: Arc::clone(shared),
            verified: VerifiedMessages::default(),
        }
    }

    /// The names of the edits that run, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.iter().map(Into::into)
    }

    /// The forms of requests for a model.
    pub fn forms(&self, model: Option<&str>) -> Vec<Form> {
        let Settings { forms, learnt, .. } = &self.settings.policy;
        let more = learnt.of(model).iter().filter(|form| !forms.contains(form));
        forms.iter().chain(more).copied().collect()
    }

    /// What the edits make of one request. After an error it was not understood, and is to go on as it came.
    pub fn plan(&self, dialect: &dyn Dialect, body: &Bytes, context: &PlanContext<'_>) -> Result<Plan, ParseError> {
        let conversation = &request::parse(dialect, body, context)?;
        self.plan_parsed(ParsedRequest { dialect, body, conversation }, context).map(|plan| *plan)
    }

    fn plan_parsed(&self, request: ParsedRequest<'_>, context: &PlanContext<'_>) -> Result<Box<Plan>, ParseError> {
        let plan = self.drafted(request, context, Leaving::Allowed)?;
        // No server takes an empty array.
        if plan.report.messages_after == 0 && !request.conversation.elements.is_empty() {
            return self.drafted(request, context, Leaving::Forbidden);
        }
        Ok(plan)
    }

    /// The plan that all edits make of a draft.
    fn drafted(
        &self,
        request: ParsedRequest<'_>,
        context: &PlanContext<'_>,
        leaving: Leaving,
    ) -> Result<Box<Plan>, ParseError> {
        let whole = request.conversation;
        let prefix_keys = self.prefix_keys(request, context);
        let fold = prefix_keys.as_ref().and_then(|keys| Some(keys.applied.as_ref()?.fold.clone()));
        let folded = fold.as_ref().map(|fold| whole.folded(fold));
        let view = ParsedRequest { conversation: folded.as_ref().unwrap_or(whole), ..request };
        let drafted = |strips_now: bool| {
            let mut draft = Draft::new(view, context, &self.shared.recall, self.shared.language);
            draft.root = self.root(request, context);
            if let Some(prefix_keys) = prefix_keys.clone() {
                draft.apply_summary(Summarize::LABEL, whole, prefix_keys);
            }
            draft.bind_reasoning(&self.settings.reasoning, whole, strips_now);
            draft.leaving = leaving;
            draft.forms = self.forms(view.conversation.model.as_deref());
            if let Some(n_frozen) = context.in_place {
                draft.edit_in_place(n_frozen);
            }
            for edit in &self.edits {
                context.meter.yield_now();
                edit.apply(&mut draft);
            }
            draft.apply_forms();
            draft.finish()
        };
        let mut plan = drafted(context.strips_now);
        if plan.basis.is_unknown_form {
            plan = drafted(true);
        }
        if !plan.is_empty() || plan.needs.is_some() {
            context.meter.yield_now();
            // Messages that a summary replaces are not sent; they were checked when the summary was made.
            let hidden = fold.iter().flat_map(Fold::hidden).map(|messages| whole.span_of(messages));
            self.verified.check(view, hidden)?;
        }
        Ok(plan)
    }

    /// Whether the text that a handler has answered may be used.
    pub fn check_answer(&self, ask: &HandlerAsk, answer: &str) -> Result<(), AnswerFault> {
        ask.check(answer, |line| self.shared.own_texts.may_be_line(line))
    }
}

#[cfg(test)]
mod tests;
