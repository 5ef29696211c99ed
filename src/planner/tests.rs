//! Policies from settings, and when a body is counted, looked up and left alone.

use super::*;
use crate::dialect;

fn planner(settings: &str) -> Planner {
    Planner::new(toml::from_str(settings).unwrap())
}

fn plan(settings: &Settings, body: &'static [u8]) -> Result<Plan, ParseError> {
    let planner = Planner::new(PlanSettings { policy: settings.clone(), ..PlanSettings::default() });
    planner.plan(dialect::for_path("/v1/chat/completions").unwrap(), &Bytes::from_static(body))
}

const DANGLING: &[u8] = br#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#;

#[test]
fn an_edit_that_is_not_listed_is_off() {
    let none = plan(&Settings { edits: vec![], ..Settings::default() }, DANGLING).unwrap();
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
    let all = [
        "patch_tool_calls",
        "filter_tool_calls",
        "truncate_tool_results",
        "clear_tool_results",
        "deduplicate_tool_results",
        "summarize",
        "request_prompt_cache",
    ];
    assert_eq!(names, all);
}

#[test]
fn a_body_is_tokenised_only_where_an_edit_may_want_it() {
    let counts_from = |edits: &str, keys: &str| {
        let policy = format!(
            "policy.edits = [{edits}]\nclear_tool_results = {{ when = 'any', trigger = {{ tokens = 3000 }} }}\n\
             [summarize]\ntrigger = {{ tokens = 2000 }}\n{keys}"
        );
        planner(&policy).policy.counts_from
    };
    let both = "'clear_tool_results', 'summarize'";
    assert_eq!(counts_from("'patch_tool_calls', 'filter_tool_calls'", ""), usize::MAX);
    assert_eq!(counts_from("'clear_tool_results'", ""), 2048, "half of the smallest window may be all there is for it");
    assert_eq!((counts_from(both, ""), counts_from(both, "mode = 'background'")), (2000, 1600));
}

#[test]
fn summaries_of_short_bodies_are_looked_up_only_where_the_trigger_is_in_reach() {
    let root = |trigger: &str, model: &str, n_bytes: usize| {
        let planner = planner(&format!("policy.edits = ['summarize']\nsummarize = {{ trigger = {{ {trigger} }} }}"));
        let text = "x".repeat(n_bytes);
        let body =
            format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}},{{"role":"user"}}]}}"#);
        let dialect = dialect::for_path("/v1/chat/completions").unwrap();
        let body = body.into();
        assert_eq!(planner.plan(dialect, &body).unwrap().basis.root, None, "nothing is to be looked up");
        let context = PlanContext { look_up: LookUp::Pending, ..planner.anonymous(&NoSummaries) };
        planner.policy.plan(dialect, &body, &context).unwrap().basis.root.is_some()
    };
    assert!(!root("fraction = 0.8", "gpt-4o", 15_000) && root("fraction = 0.8", "gpt-4o", 17_000));
    assert!(!root("fraction = 0.8", "unknown", 15_000));
    assert!(!root("fraction = 0.8", "gpt-4", 4_000) && root("fraction = 0.8", "gpt-4", 7_000), "8,192 tokens");
    assert!(!root("tokens = 3000", "gpt-4o", 1_000) && root("tokens = 3000", "gpt-4o", 3_000));
}

#[test]
fn the_shortest_form_clears_all_that_was_read() {
    let settings = PlanSettings::default();
    let shortest = settings.shortest();
    let policy = Settings { forms: vec![Form::NewImages], ..settings.policy.clone() };
    assert_eq!(shortest.policy, policy);
    assert_eq!(shortest.clear_tool_results.keep, Keep::Results(0));
    assert_eq!(shortest.clear_tool_results.exclude_tools, settings.clear_tool_results.exclude_tools);
    let policy = Settings { edits: vec![EditName::PatchToolCalls, EditName::Summarize], ..Settings::default() };
    let edits = PlanSettings { policy, ..settings }.shortest().policy.edits;
    assert_eq!(edits, [EditName::PatchToolCalls, EditName::ClearToolResults, EditName::Summarize]);
}

#[test]
fn a_body_that_is_not_valid_is_not_changed() {
    for fault in [r"\x", "\\u12", "\u{1}", "\n"] {
        let body = format!(r#"{{"x":"{fault}","messages":[{{"role":"assistant","tool_calls":[{{"id":"1"}}]}}]}}"#);
        let error = plan(&Settings::default(), body.leak().as_bytes()).unwrap_err();
        assert_eq!(error.kind, dialect::ParseErrorKind::NotJson);
    }
}
