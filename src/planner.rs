//! The policy: which edits run, in which order; and the plan that they make of one request.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::verified::Verified;

use crate::{
    conversation::Fold,
    dialect::{Dialect, ParseError},
    draft::{Beginnings, Draft, Source, reasoning},
    edit::{
        Edit, Language,
        clear_tool_results::{self, ClearToolResults, Frontier},
        filter_tool_calls::{self, FilterToolCalls},
        keep::Keep,
        own_texts::OwnTexts,
        patch_tool_calls::{self, PatchToolCalls},
        summarize::{self, Summarize},
        tools::{self, Tools},
        trigger::{Condition, Trigger},
        truncate_tool_results::{self, TruncateToolResults},
    },
    payload::{Caller, ChainKey, Keys},
    plan::Plan,
    recall,
    summary::{Memory, NoMemory},
    tokens::{self, Meter, models},
};

pub use crate::draft::{Offload, Situation, When};

mod verified;

/// All settings that plans depend on: tables of `proxy.toml`, each under its own name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parts {
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
    /// The edit that puts a summary in place of old messages.
    pub summarize: summarize::Settings,
    /// What becomes of reasoning that is bound to its prefix.
    pub reasoning: reasoning::Settings,
    /// Settings of single tools.
    pub tools: tools::Settings,
    /// How tokens are counted.
    pub tokens: tokens::Settings,
    /// What models take, and how they split text, where it is not known otherwise.
    pub models: Vec<models::Settings>,
}

/// `[policy]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The edits that run, in this order, each at most once. An edit that is not listed is off.
    pub edits: Vec<EditName>,
}

/// The edits there are, by the names that `edits = [...]` takes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EditName {
    /// Gives every tool call exactly one result.
    PatchToolCalls,
    /// Leaves out the oldest tool calls and their results; off until `max_tool_calls` is set.
    FilterToolCalls,
    /// Cuts the middle out of long results.
    TruncateToolResults,
    /// Replaces old results with placeholders.
    ClearToolResults,
    /// Replaces old messages with a summary.
    Summarize,
}

impl EditName {
    /// All edits, in the order in which they run if nothing else is said: cheap ones first, and first of all what makes
    /// rounds whole.
    const ALL: [Self; 5] = [
        Self::PatchToolCalls,
        Self::FilterToolCalls,
        Self::TruncateToolResults,
        Self::ClearToolResults,
        Self::Summarize,
    ];
}

impl Default for Settings {
    fn default() -> Self {
        Self { edits: EditName::ALL.to_vec() }
    }
}

/// Makes plans by settings: the one way from settings to a [`Situation`], for the proxy and for the commands that plan
/// without one.
#[derive(Debug)]
pub struct Planner {
    /// The settings.
    pub parts: Parts,
    /// Which edits run.
    pub policy: Policy,
    /// Counts tokens.
    pub meter: Meter,
    /// Name payloads.
    pub keys: Keys,
    /// Whether what is taken out can be stored.
    pub offload: Offload,
}

/// The edits that run on each request, in order.
#[derive(Debug)]
pub struct Policy {
    edits: Vec<Box<dyn Edit>>,
    language: Language,
    recall: recall::Settings,
    /// What sets summaries apart that are remembered, if any are used.
    summaries: Option<summarize::Scope>,
    /// The shortest body that anything is counted of.
    counts_from: usize,
    reasoning: reasoning::Rules,
    verified: Verified,
}

impl Parts {
    /// The same settings, but for a policy that makes a conversation as short as it can: all results that the model has read
    /// are cleared.
    #[must_use]
    pub fn shortest(&self) -> Self {
        let mut parts = self.clone();
        let clear = &mut parts.clear_tool_results;
        clear.trigger = Trigger(vec![Condition { tokens: Some(0), ..Condition::default() }]);
        clear.keep = Keep::Results(0);
        clear.clear_at_least = Some(0);
        clear.frontier = Frontier::Sliding;
        let edits = &mut parts.policy.edits;
        if !edits.contains(&EditName::ClearToolResults) {
            let end = edits.iter().position(|edit| *edit == EditName::Summarize).unwrap_or(edits.len());
            edits.insert(end, EditName::ClearToolResults);
        }
        parts
    }
}

impl Planner {
    /// A planner for settings alone: it counts with a meter of its own and names payloads with [`Keys::well_known`].
    pub fn new(parts: Parts) -> Self {
        let meter = Meter::new(&parts.tokens, &parts.models);
        Self::with(parts, meter, Keys::well_known(), Offload::Possible)
    }

    /// A planner that counts with this meter and names payloads with these keys.
    pub fn with(parts: Parts, meter: Meter, keys: Keys, offload: Offload) -> Self {
        Self { policy: Policy::new(&parts), parts, meter, keys, offload }
    }

    /// A planner for other settings that shares the meter and the keys.
    #[must_use]
    pub fn under(&self, parts: Parts) -> Self {
        Self::with(parts, self.meter.clone(), self.keys.clone(), self.offload)
    }

    /// The situation of a request of `caller`, with what is remembered of summaries.
    pub fn situation<'a>(&'a self, caller: Caller, summaries: &'a dyn Memory) -> Situation<'a> {
        let Self { meter, keys, offload, .. } = self;
        Situation { meter, keys, caller, offload: *offload, summaries, summarize: When::Triggered }
    }

    /// The situation of a request of somebody who shows no credential.
    pub fn anonymous<'a>(&'a self, summaries: &'a dyn Memory) -> Situation<'a> {
        self.situation(self.keys.anonymous(), summaries)
    }

    /// The plan for such a request, where no summary is remembered.
    pub fn plan(&self, dialect: &dyn Dialect, body: &Bytes) -> Result<Plan, ParseError> {
        self.policy.plan(dialect, body, &self.anonymous(&NoMemory))
    }
}

impl Policy {
    /// The edits that `parts.policy` lists. One that is listed again is the same one, and runs once.
    pub fn new(parts: &Parts) -> Self {
        let mut names: Vec<EditName> = Vec::new();
        for &name in &parts.policy.edits {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let (language, recall, tools) = (parts.language, &parts.recall, Tools::new(&parts.tools));
        let own_texts = OwnTexts {
            missing: parts.patch_tool_calls.template(language),
            truncated: parts.truncate_tool_results.template(language),
            cleared: parts.clear_tool_results.template(language),
        };
        let (mut counts_from, mut summaries) = (usize::MAX, None);
        let edit = |name| -> Box<dyn Edit> {
            match name {
                EditName::PatchToolCalls => Box::new(PatchToolCalls::new(&parts.patch_tool_calls, language)),
                EditName::FilterToolCalls => Box::new(FilterToolCalls::new(&parts.filter_tool_calls)),
                EditName::TruncateToolResults => {
                    let edit =
                        TruncateToolResults::new(&parts.truncate_tool_results, &tools, recall, &own_texts, language);
                    counts_from = counts_from.min(edit.least_bytes());
                    Box::new(edit)
                }
                EditName::ClearToolResults => {
                    let edit = ClearToolResults::new(&parts.clear_tool_results, &tools, &own_texts, language);
                    counts_from = counts_from.min(edit.least_bytes());
                    Box::new(edit)
                }
                EditName::Summarize => {
                    let edit = Summarize::new(&parts.summarize, language, recall);
                    counts_from = counts_from.min(edit.least_bytes());
                    summaries = Some(edit.scope().clone());
                    Box::new(edit)
                }
            }
        };
        let edits = names.into_iter().map(edit).collect();
        Self {
            edits,
            language,
            recall: recall.clone(),
            summaries,
            counts_from,
            reasoning: reasoning::Rules::new(&parts.reasoning),
            verified: Verified::default(),
        }
    }

    /// The names of the edits that run, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.edits.iter().map(|edit| edit.name())
    }

    /// A body shorter than this many bytes is never tokenised, so it may be planned where nothing may take long.
    pub fn counts_from(&self) -> usize {
        self.counts_from
    }

    /// What the edits make of one request. An error says that the request was not understood and is to go on as it
    /// came.
    pub fn plan(&self, dialect: &dyn Dialect, body: &Bytes, situation: &Situation<'_>) -> Result<Plan, ParseError> {
        let whole = dialect.parse(body)?;
        let source = Source { dialect, body, conversation: &whole };
        let beginnings = self.beginnings(source, situation);
        let fold = beginnings.as_ref().and_then(Beginnings::applied).map(|applied| applied.fold.clone());
        let folded = fold.as_ref().map(|fold| whole.folded(fold));
        let source = Source { conversation: folded.as_ref().unwrap_or(&whole), ..source };
        let mut draft = Draft::new(source, situation, &self.recall, self.language);
        if let Some(beginnings) = beginnings {
            draft.begin(Summarize::LABEL, &whole, beginnings);
        }
        draft.bind_reasoning(self.reasoning.of(&whole));
        for edit in &self.edits {
            edit.apply(&mut draft);
        }
        let plan = draft.finish();
        if !plan.is_empty() || plan.needs.is_some() {
            // What a summary stands for does not go on; it was checked when the summary was made.
            let hidden = fold.iter().flat_map(Fold::hidden).map(|messages| whole.span_of(messages));
            self.verified.check(dialect, body, folded.as_ref().unwrap_or(&whole), hidden)?;
        }
        Ok(plan)
    }

    /// The name under which a summary of all messages before `end` is remembered, if this policy uses summaries.
    pub fn beginning(
        &self,
        dialect: &dyn Dialect,
        body: &Bytes,
        situation: &Situation<'_>,
        end: usize,
    ) -> Option<ChainKey> {
        let conversation = dialect.parse(body).ok()?;
        let source = Source { dialect, body, conversation: &conversation };
        let scope = self.summaries.as_ref()?.of_model(conversation.model.as_deref());
        Beginnings::of(source, situation, &scope).name(end)
    }

    /// The name under which processes that share a store look up the summaries of a conversation, if this policy uses any.
    pub fn root(&self, dialect: &dyn Dialect, body: &Bytes, situation: &Situation<'_>) -> Option<ChainKey> {
        let scope = self.summaries.as_ref()?;
        let conversation = dialect.parse(body).ok()?;
        let scope = scope.of_model(conversation.model.as_deref());
        Beginnings::root_of(Source { dialect, body, conversation: &conversation }, situation, &scope)
    }

    /// What is remembered of the beginnings of a conversation. Nothing is hashed where nothing is remembered.
    fn beginnings(&self, source: Source<'_>, situation: &Situation<'_>) -> Option<Beginnings> {
        let scope = self.summaries.as_ref().filter(|_| !situation.summaries.is_empty())?;
        Some(Beginnings::of(source, situation, &scope.of_model(source.conversation.model.as_deref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    fn planner(settings: &str) -> Planner {
        Planner::new(toml::from_str(settings).unwrap())
    }

    fn plan(settings: &Settings, body: &'static [u8]) -> Result<Plan, ParseError> {
        let planner = Planner::new(Parts { policy: settings.clone(), ..Parts::default() });
        planner.plan(dialect::for_path("/v1/chat/completions").unwrap(), &Bytes::from_static(body))
    }

    const DANGLING: &[u8] = br#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#;

    #[test]
    fn an_edit_that_is_not_listed_is_off() {
        let none = plan(&Settings { edits: vec![] }, DANGLING).unwrap();
        assert!(none.is_empty());
        assert_eq!((none.report.messages_before, none.report.messages_after), (1, 1));
        assert_eq!(plan(&Settings::default(), DANGLING).unwrap().report.messages_after, 2);
    }

    #[test]
    fn edits_have_the_names_of_their_tables() {
        let planner = planner(
            "[summarize]\ntrigger = { tokens = 9 }\n[filter_tool_calls]\n[truncate_tool_results]\n[clear_tool_results]",
        );
        let names: Vec<_> = planner.policy.names().collect();
        let all = ["patch_tool_calls", "truncate_tool_results", "filter_tool_calls", "clear_tool_results", "summarize"];
        assert!(all.iter().all(|name| names.contains(name)), "{names:?}");
        assert_eq!(names.len(), all.len(), "{names:?}");
    }

    #[test]
    fn a_body_is_tokenised_only_where_an_edit_may_want_it() {
        let counts_from = |edits: &str, keys: &str| {
            let policy = format!(
                "policy.edits = [{edits}]\nclear_tool_results.trigger = {{ tokens = 3000 }}\n\
                 [summarize]\ntrigger = {{ tokens = 2000 }}\n{keys}"
            );
            planner(&policy).policy.counts_from()
        };
        let both = "'clear_tool_results', 'summarize'";
        assert_eq!(counts_from("'patch_tool_calls', 'filter_tool_calls'", ""), usize::MAX);
        assert_eq!(counts_from("'clear_tool_results'", ""), 3000);
        assert_eq!((counts_from(both, ""), counts_from(both, "mode = 'background'")), (2000, 1600));
    }

    #[test]
    fn the_shortest_form_clears_all_that_was_read() {
        let parts = Parts::default();
        let shortest = parts.shortest();
        assert_eq!(shortest.policy, parts.policy);
        assert_eq!(shortest.clear_tool_results.keep, Keep::Results(0));
        assert_eq!(shortest.clear_tool_results.exclude_tools, parts.clear_tool_results.exclude_tools);
        let policy = Settings { edits: vec![EditName::PatchToolCalls, EditName::Summarize] };
        let edits = Parts { policy, ..parts }.shortest().policy.edits;
        assert_eq!(edits, [EditName::PatchToolCalls, EditName::ClearToolResults, EditName::Summarize]);
    }

    #[test]
    fn an_edit_that_is_listed_twice_runs_once() {
        let twice = Settings { edits: vec![EditName::PatchToolCalls; 2] };
        assert_eq!(plan(&twice, DANGLING), plan(&Settings::default(), DANGLING));
    }

    #[test]
    fn a_body_that_is_not_valid_is_not_changed() {
        for fault in [r"\x", "\\u12", "\u{1}", "\n"] {
            let body = format!(r#"{{"x":"{fault}","messages":[{{"role":"assistant","tool_calls":[{{"id":"1"}}]}}]}}"#);
            let error = plan(&Settings::default(), body.leak().as_bytes()).unwrap_err();
            assert_eq!(error.kind, dialect::ParseErrorKind::NotJson);
        }
    }
}
