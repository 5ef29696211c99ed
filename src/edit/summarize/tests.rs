//! The messages that are summarised, the time of a summary, and the message that replaces them.
#![expect(clippy::disallowed_types, reason = "nothing waits here, and messages are looked at by eyes of our own")]

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use serde_json::json;

use super::super::tests::{HTTP, World, body, body_of, messages, text, words};
use super::*;
use crate::{
    draft::{LookUp, Offload, SummaryTiming},
    payload::ChainKey,
    plan::{Action, Plan},
    summary::{Summary, SummaryIndex, SummaryState},
};

mod again;
mod late;
mod names;

/// A memory that is a map.
#[derive(Debug, Default)]
struct Map(Mutex<HashMap<ChainKey, SummaryState>>);

impl SummaryIndex for Map {
    fn state(&self, beginning: ChainKey) -> SummaryState {
        self.0.lock().unwrap().get(&beginning).cloned().unwrap_or(SummaryState::Unknown)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

impl Map {
    fn put(&self, key: ChainKey, known: SummaryState) {
        self.0.lock().unwrap().insert(key, known);
    }

    /// Keeps what a model would have made.
    fn make(&self, job: &SummaryJob, says: &str) {
        let summary = Summary {
            text: job.frame.around(says),
            tokens_replaced: job.tokens_replaced,
            made_at: job.n_elements,
            transcript: job.transcript.as_ref().map(|transcript| transcript.key),
        };
        self.put(job.key, SummaryState::Summary(Arc::new(summary)));
    }
}

/// Six messages, or any tokens.
const SIX: &str = "[summarize]\ntrigger = { messages = 6 }\n";

fn plan_in(memory: &Map, words: &str, policy: &str) -> (Plan, Bytes) {
    World { summaries: memory, ..World::default() }.plan(&body(words), &format!("{HTTP}{policy}"))
}

fn made(plan: &Plan) -> &SummaryJob {
    match &plan.needs {
        Some(Need::Make(job)) => job,
        other => panic!("{other:?}\n{plan}"),
    }
}

fn whys(plan: &Plan) -> Vec<SkipReason> {
    plan.report.left_out.iter().filter(|left_out| left_out.edit == "summary").map(|left_out| left_out.why).collect()
}

/// Checks which messages are to be summarised; an empty range is none.
fn check_cut(words: &str, policy: &str, expected: Range<usize>) {
    let (plan, _) = plan_in(&Map::default(), words, policy);
    let covers = match &plan.needs {
        Some(Need::Make(job)) => job.covers.clone(),
        _ => 0..0,
    };
    assert_eq!(covers, expected, "{words}\n{policy}\n{plan}");
    let changed = plan.report.changes.iter().any(|change| change.edit == "summary");
    assert!(!changed, "nothing is done before the summary is there");
}

#[test]
fn asks_for_a_summary_where_the_trigger_holds() {
    let memory = Map::default();
    let (plan, _) = plan_in(&memory, "s u c:1 t:1*400 a u", SIX);
    let job = made(&plan);
    assert_eq!((job.covers.clone(), job.waits, job.model.as_deref()), (1..4, true, None));
    assert_eq!(whys(&plan), [SkipReason::NoSummary]);
    assert_eq!(job.source.messages.len(), 4);
    assert_eq!((job.source.n_leading, &job.source.body), (1, &body("s u c:1 t:1*400 a u")));
    assert_eq!(job.tokens, job.tokens_replaced, "nothing else was edited");
    assert_eq!(job.tokens, job.source.messages[1..].iter().map(|piece| piece.tokens).sum::<usize>());
    let opens: Vec<_> = job.source.messages.iter().map(|piece| piece.opens).collect();
    assert_eq!(opens, [true, true, true, false]);
    let of_model: Vec<_> = job.source.messages.iter().map(|piece| piece.must_alternate).collect();
    assert_eq!(of_model, [false, false, true, false]);
    let (below, _) = plan_in(&memory, "s u c:1 t:1*400 u", SIX);
    assert!(below.needs.is_none() && whys(&below).is_empty());
}

#[test]
fn what_others_may_have_made_is_looked_up_before_a_job_is_made() {
    let long = format!("u c:1 t:1*{} a u", 16 << 10);
    let plan =
        |look_up, words: &str| World { look_up, ..World::default() }.plan(&body(words), &format!("{HTTP}{SIX}")).0;
    let pending = plan(LookUp::Pending, &format!("s {long}"));
    assert!(pending.basis.root.is_some());
    assert_eq!((&pending.needs, whys(&pending)), (&Some(Need::LookUp), vec![SkipReason::NoSummary]));
    let done = plan(LookUp::Done, &format!("s {long}"));
    assert_eq!((made(&done).root, done.basis.root), (pending.basis.root.unwrap(), None));
    let below = plan(LookUp::Pending, &long);
    assert!(below.basis.root.is_some() && below.needs.is_none(), "there may be a summary, and none is due");
}

#[test]
fn where_a_users_turn_begins_four_fifths_of_the_trigger_are_enough() {
    let policy =
        |when: &str| format!("[summarize]\ntrigger = {{ messages = 10 }}\nkeep = {{ rounds = 0 }}\nwhen = '{when}'");
    let eight = "u c:1 t:1*400 c:2 t:2*400 a u";
    let (plan, _) = plan_in(&Map::default(), &format!("s {eight}"), &policy("turn"));
    assert!(made(&plan).waits, "{plan}");
    check_cut(&format!("s {eight}"), &policy("any"), 0..0);
    check_cut(eight, &policy("turn"), 0..0);
    // Within a turn the trigger has to hold.
    check_cut("s u c:1 t:1*400 c:2 t:2*400 c:3 t:3*400", &policy("turn"), 0..0);
    check_cut("s s u c:1 t:1*400 c:2 t:2*400 c:3 t:3*400 c:4 t:4*400", &policy("turn"), 2..9);
}

#[test]
fn the_cut_keeps_what_the_settings_say_and_what_was_not_read() {
    let keep = |keep: &str| format!("{SIX}keep = {keep}");
    for (words, keeps, expected) in [
        // The newest message of the user, and the answer before it.
        ("s u c:1 t:1*400 a u", "{ rounds = 1 }", 1..4),
        ("s u c:1 t:1*400 c:2 t:2 u", "{ rounds = 0 }", 1..4),
        ("s u c:1 t:1*400 c:2 t:2 a u", "{ rounds = 0 }", 1..6),
        // The same with all after it, if that is little enough; everything that was not read does not count.
        ("s u a u c:1 t:1 a u c:2 t:2", "{ rounds = 0 }", 1..6),
        ("s u c:9 t:9 a u c:1 t:1 c:2 t:2", "{ rounds = 1 }", 1..4),
        ("s u a u c:1 t:1 c:2 t:2 c:3 t:3", "{ rounds = 1 }", 1..6),
        ("s u a u c:1 t:1 c:2 t:2 c:3 t:3", "{ rounds = 0 }", 1..8),
        ("s u c:9 t:9 a u c:1 t:1 c:2 t:2 c:3 t:3", "{ rounds = 2 }", 1..4),
        ("s u c:1,2 t:1 t:2 c:3,4 t:3 t:4 c:5 t:5", "{ results = 2 }", 1..5),
        ("s u c:1,2 t:1 t:2 c:3,4 t:3 t:4 c:5 t:5", "{ results = 1 }", 1..8),
        ("s u c:1 t:1*4000 c:2 t:2*400 c:3 t:3*400 c:4 t:4*400", "{ tokens = 150 }", 1..6),
        ("s u c:1 t:1*4000 c:2 t:2*400 c:3 t:3*400 c:4 t:4*400", "{ tokens = 300 }", 1..4),
        // The last message stays, whatever it is.
        // A prefill stays, and with it what no one has read.
        ("s u c:1 t:1 c:2 t:2 a", "{ rounds = 0 }", 1..4),
        ("s u c:1 t:1 u a c:2", "{ rounds = 0 }", 1..4),
        ("u c:1 t:1*900 c:2 t:2 u u s", "{ rounds = 0 }", 0..3),
        // No one has answered yet.
        ("s u u u u u u", "{ rounds = 0 }", 0..0),
        ("s s s s s s u", "{ rounds = 0 }", 0..0),
    ] {
        check_cut(words, &keep(keeps), expected);
    }
}

#[test]
fn no_round_is_parted() {
    // A result that arrives late is moved to its call by the patch, or stays where it is without.
    let none = "keep = { rounds = 0 }";
    let much = "keep = { rounds = 9 }";
    check_cut("s u a a c:1 u c:2 t:2 t:1 a c:3 t:3", &format!("{SIX}{much}\n[policy]\nedits = [\"summarize\"]"), 1..4);
    check_cut("s u c:9 u c:2 t:2 c:3 t:3", &format!("{SIX}{much}\n[policy]\nedits = [\"summarize\"]"), 1..3);
    check_cut("s u u c:2 t:2 c:3 t:3", &format!("{SIX}{much}"), 1..2);
    check_cut("s u a u c:1 u t:1 a u c:2", &format!("{SIX}{none}\n[policy]\nedits = [\"summarize\"]"), 1..7);
    let (plan, _) = plan_in(&Map::default(), "s u a c:1 u u a u t:1", &format!("{SIX}{none}"));
    assert_eq!(made(&plan).covers, 1..3, "the late result has not been read");
}

#[test]
fn a_summary_stands_for_what_it_was_made_of() {
    let memory = Map::default();
    let first = "s u c:1 t:1*400 a u";
    let (plan, _) = plan_in(&memory, first, SIX);
    memory.make(made(&plan), "It went well.");
    for (more, expected) in [("", "s u a u"), (" c:2 t:2*99", "s u a u c:2 t:2*99"), (" a u", "s u a u a u")] {
        let (plan, output) = plan_in(&memory, &format!("{first}{more}"), SIX);
        assert_eq!(words(&output), expected);
        let change = &plan.report.changes[0];
        assert_eq!((change.edit, change.action), ("summary", Action::Summarize { from: 1, to: 4 }));
        assert_eq!(change.handles.len(), 1);
        let (before, after) = (body(&format!("{first}{more}")), messages(&output));
        assert_eq!(plan.report.messages_before, messages(&before).len());
        assert_eq!(plan.report.messages_after, after.len());
        assert_eq!(after[0], messages(&before)[0]);
        assert_eq!(after[2..], messages(&before)[4..], "the tail is what it was");
        let says = after[1]["content"].as_str().unwrap();
        assert!(says.contains("It went well.") && says.contains(&change.handles[0].to_string()), "{says}");
    }
}

#[test]
fn what_a_summary_stands_for_is_not_counted_again() {
    let memory = Map::default();
    let policy = "[summarize]\ntrigger = { tokens = 1000 }\n";
    let first = "s u c:1 t:1*8000 a u";
    let (plan, _) = plan_in(&memory, first, policy);
    let job = made(&plan).clone();
    memory.make(&job, "Well.");
    let (plan, _) = plan_in(&memory, first, policy);
    assert!(plan.report.changes.len() == 1 && plan.report.tokens_before.is_some_and(|n| n > 2000), "{plan}");
    let asked = format!(
        "{policy}[policy]\nedits = [\"clear_tool_results\", \"summarize\"]\n[clear_tool_results]\nwhen = 'any'\ntrigger = [{{ messages = 1, tokens = 9 }}]"
    );
    let (plan, _) = plan_in(&memory, first, &asked);
    let sizes = plan.report.changes[0].tokens.unwrap();
    assert_eq!(sizes.before, job.tokens_replaced);
    assert!(sizes.after < sizes.before);
    assert!(plan.report.tokens_before.unwrap() > 2000 && plan.report.tokens_after.unwrap() < 1000, "{plan}");
}

#[test]
fn other_changes_name_messages_as_they_came() {
    let memory = Map::default();
    let (plan, _) = plan_in(&memory, "s u c:1 t:1*400 a u", SIX);
    memory.make(made(&plan), "Well.");
    let (plan, output) = plan_in(&memory, "s u c:1 t:1*400 a u c:2 u t:2 c:3,4 t:3 t:9", SIX);
    let actions: Vec<_> = plan.report.changes.iter().map(|change| change.action).collect();
    assert_eq!(
        actions,
        [
            Action::Summarize { from: 1, to: 4 },
            Action::Drop { message: 11 },
            Action::Move { message: 8, behind: 6 },
            Action::Insert { behind: 10 },
        ]
    );
    assert_eq!(messages(&output).len(), 10);
}

#[test]
fn the_next_summary_is_made_of_the_last_one_and_what_came_since() {
    let memory = Map::default();
    let policy = format!("{SIX}keep = {{ rounds = 0 }}");
    let mut conversation = "s u c:1 t:1*400 a u".to_owned();
    let (plan, _) = plan_in(&memory, &conversation, &policy);
    memory.make(made(&plan), "First.");
    conversation += " c:2 t:2*400 a u c:3 t:3";
    let (plan, output) = plan_in(&memory, &conversation, &policy);
    assert_eq!(words(&output), "s u a u c:2 t:2*400 a u c:3 t:3");
    let job = made(&plan);
    assert_eq!(job.covers, 1..8);
    let source: Vec<_> = job.source.messages.iter().map(|piece| String::from_utf8_lossy(&piece.json)).collect();
    assert_eq!(source.len(), 6);
    assert!(source[1].contains("First."), "{source:?}");
    assert!(job.tokens_replaced > 200 && job.tokens_replaced > job.tokens.saturating_sub(100));
    let transcript = job.transcript.as_ref().unwrap().payload.bytes();
    let lines: Vec<_> = transcript.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let came = messages(&body(&conversation));
    assert_eq!(lines.len(), 7);
    for (line, message) in lines.iter().zip(&came[1..8]) {
        assert_eq!(serde_json::from_slice::<serde_json::Value>(line).unwrap(), *message);
    }
    memory.make(job, "Second.");
    let (_, output) = plan_in(&memory, &conversation, &policy);
    assert_eq!(words(&output), "s u a u c:3 t:3");
    let text = String::from_utf8(output.to_vec()).unwrap();
    assert!(text.contains("Second.") && !text.contains("First."));
}

#[test]
fn another_history_or_end_has_no_use_for_it() {
    let memory = Map::default();
    let policy = format!("{SIX}keep = {{ rounds = 0 }}");
    let (plan, _) = plan_in(&memory, "s u c:1 t:1*400 c:2 t:2 a u", &policy);
    assert_eq!(made(&plan).covers, 1..6);
    memory.make(made(&plan), "Well.");
    let used = |words: &str| !plan_in(&memory, words, &policy).0.is_empty();
    assert!(used("s u c:1 t:1*400 c:2 t:2 a u a"));
    assert!(used("s s u c:1 t:1*400 c:2 t:2 a u"), "instructions are no part of it");
    for other in [
        "s u c:1 t:1*401 c:2 t:2 a u",
        "s u u c:1 t:1*400 c:2 t:2 a u",
        // The replaced messages have not been read, or are all there is.
        "s u c:1 t:1*400 c:2 t:2",
        "s u c:1 t:1*400",
    ] {
        assert!(!used(other), "{other}");
    }
    // A call without a result was summarised, and in this history it has one.
    let (plan, _) = plan_in(&memory, "s u c:9 t:9 c:1 u a u", &policy);
    assert_eq!(made(&plan).covers, 1..6);
    memory.make(made(&plan), "Well.");
    assert!(used("s u c:9 t:9 c:1 u a u"));
    assert!(plan_in(&memory, "s u c:9 t:9 c:1 t:1 u a u", &policy).0.is_empty());
    // One that arrives late reopens its round.
    assert_eq!(words(&plan_in(&memory, "s u c:9 t:9 c:1 u t:1 a u", &policy).1), "s u c:1 t:1 a u");
}

#[test]
fn the_longest_one_is_used() {
    let memory = Map::default();
    let conversation = "s u c:1 t:1*400 c:2 t:2*400 c:3 t:3*400 a u";
    for end in ["u c:1 t:1*400 c:2 t:2*400 c:3", "u c:1 t:1*400 c:2 t:2*400 c:3 t:3*400 a u"] {
        let (plan, _) = plan_in(&Map::default(), &format!("s {end}"), &format!("{SIX}keep = {{ rounds = 0 }}"));
        memory.make(made(&plan), end);
    }
    let (plan, _) = plan_in(&memory, conversation, SIX);
    assert_eq!(plan.report.changes[0].action, Action::Summarize { from: 1, to: 8 });
}

#[test]
fn scopes_keep_summaries_apart() {
    let memory = Map::default();
    let conversation = messages(&body("s u c:1 t:1*400 a u"));
    let request = |model: &str| Bytes::from(json!({"model": model, "messages": conversation}).to_string());
    let plan = |model: &str, policy: &str| {
        World { summaries: &memory, ..World::default() }.plan(&request(model), &format!("{HTTP}{policy}")).0
    };
    memory.make(made(&plan("gpt-4o", SIX)), "Well.");
    assert!(!plan("gpt-4o", SIX).is_empty());
    assert!(plan("gpt-4o-mini", SIX).is_empty());
    for shapes in ["instruction = 'Be short.'", "transcript = false", "preserve_user_messages = { enabled = false }"] {
        assert!(plan("gpt-4o", &format!("{SIX}{shapes}")).is_empty(), "{shapes}");
    }
    assert!(plan("gpt-4o", &format!("language = 'zh'\n{SIX}")).is_empty());
    let elsewhere = "recall = { via = \"http\", public_url = \"http://elsewhere\" }\n";
    let moved = World { summaries: &memory, ..World::default() };
    assert!(moved.plan(&request("gpt-4o"), &format!("{elsewhere}{SIX}")).0.is_empty());
    for other in [
        "mode = 'background'",
        "keep = { rounds = 0 }",
        "timeout = '9s'",
        "cooldown = '9s'",
        "retry = { max_retries = 9 }",
        "failover = [{ base_url = 'http://other/v1', model = 'other' }]",
    ] {
        assert!(!plan("gpt-4o", &format!("{SIX}{other}")).is_empty(), "{other}");
    }
    let guarded = HTTP.replace(" }", ", auth = \"credential\" }");
    let here = World { summaries: &memory, ..World::default() };
    assert!(!here.plan(&request("gpt-4o"), &format!("{guarded}{SIX}")).0.is_empty());
    let elsewhere = World { summaries: &memory, caller: b"somebody else", ..World::default() };
    assert!(elsewhere.plan(&request("gpt-4o"), &format!("{HTTP}{SIX}")).0.is_empty());
}

#[test]
fn what_is_remembered_decides_whether_one_is_made() {
    let conversation = "s u c:1 t:1*400 a u";
    let (plan, _) = plan_in(&Map::default(), conversation, SIX);
    let job = made(&plan);
    let remembering = |known: SummaryState, more: &str, policy: &str| {
        let memory = Map::default();
        memory.put(job.key, known);
        plan_in(&memory, &format!("{conversation}{more}"), policy).0
    };
    let refused = remembering(SummaryState::CoolingDown, " a u", SIX);
    assert!(refused.needs.is_none() && whys(&refused) == [SkipReason::NoSummary]);

    let under_way = remembering(SummaryState::InProgress, " c:2 t:2*300 a u", SIX);
    assert_eq!((made(&under_way).key, made(&under_way).covers.clone()), (job.key, job.covers.clone()));
    assert_eq!(made(&under_way).source.messages, job.source.messages);

    let stored = remembering(SummaryState::Stored, " a u", SIX);
    assert_eq!(stored.needs, Some(Need::Load(job.key)));
    assert!(stored.is_empty());

    let early = "[summarize]\nmode = 'background'\ntrigger = { messages = 10 }";
    assert!(!made(&remembering(SummaryState::Unknown, " a u", early)).waits);
    assert!(remembering(SummaryState::InProgress, " a u", early).needs.is_none());
    assert!(made(&remembering(SummaryState::InProgress, " a u c:2 t:2", early)).waits);
    let refused = remembering(SummaryState::CoolingDown, " a u", early);
    assert!(refused.needs.is_none() && whys(&refused).is_empty(), "the trigger does not hold yet");
}

#[test]
fn in_the_background_it_is_made_from_four_fifths_on() {
    let policy = |trigger: &str| format!("[summarize]\nmode = 'background'\ntrigger = {trigger}");
    for (trigger, waits) in [
        ("{ messages = 8 }", None),
        ("{ messages = 7 }", Some(false)),
        ("{ messages = 6 }", Some(true)),
        // 8000 bytes of text, and a little
        ("{ tokens = 3000 }", None),
        ("{ tokens = 2200 }", Some(false)),
        ("{ tokens = 2000 }", Some(true)),
    ] {
        let (plan, _) = plan_in(&Map::default(), "s u c:1 t:1*8000 a u", &policy(trigger));
        let found = plan.needs.as_ref().map(|_| made(&plan).waits);
        assert_eq!(found, waits, "{trigger}");
        assert_eq!(whys(&plan).is_empty(), waits != Some(true), "{trigger}");
    }
}

#[test]
fn what_is_not_worth_it_or_cannot_be_kept_is_left_out() {
    let memory = Map::default();
    let (plan, _) = plan_in(&memory, "s u c:1 t:1 a u c:2 t:2*9000 c:3 t:3", SIX);
    assert!(plan.needs.is_none() && whys(&plan) == [SkipReason::TooLittle], "{plan}");
    let without = World { offload: Offload::Impossible, ..World::default() };
    let plan = |policy: &str| without.plan(&body("s u c:1 t:1*400 a u"), policy).0;
    assert!(plan(SIX).needs.is_none() && whys(&plan(SIX)) == [SkipReason::NoStore]);
    let no_transcript = plan(&format!("{SIX}transcript = false"));
    assert!(made(&no_transcript).transcript.is_none());
}

#[test]
fn whoever_asks_gets_one_whatever_the_size() {
    let asked = World { when: SummaryTiming::Now, ..World::default() };
    let plan = |words: &str| asked.plan(&body(words), HTTP).0;
    assert!(made(&plan("s u a u")).waits);
    assert_eq!(made(&plan("s u a u c:1 t:1*90000 a u")).covers, 1..6);
    let nothing = plan("s u");
    assert!(nothing.needs.is_none() && whys(&nothing) == [SkipReason::TooLittle]);
}

#[test]
fn the_source_is_what_the_other_edits_have_left() {
    let policy = format!(
        "{HTTP}[clear_tool_results]\nwhen = 'any'\ntrigger = {{ messages = 1 }}\nkeep = {{ results = 0 }}\n[filter_tool_calls]\nmax_tool_calls = 2\n{SIX}keep = {{ rounds = 0 }}"
    );
    let plan = World::default().plan(&body("s u c:1 t:1*4000 c:2 t:2*4000 c:3 u t:3*4000 a u"), &policy).0;
    let job = made(&plan);
    let source: Vec<_> = job.source.messages.iter().map(|piece| String::from_utf8_lossy(&piece.json)).collect();
    let kinds: Vec<_> = source.iter().map(|json| json.matches("Cleared: 4000").count()).collect();
    assert_eq!(kinds, [0, 0, 0, 1, 0, 1, 0], "{source:?}");
    assert_eq!(job.covers, 1..9);
    assert!(job.tokens < 1000 && job.tokens_replaced > 3000);
    let transcript = job.transcript.as_ref().unwrap().payload.bytes();
    assert_eq!(transcript.len() / 4000, 3, "the transcript has what was left out and cleared");
}

#[test]
fn users_and_skills_are_kept_word_for_word() {
    let skill = |id: &str, arguments: &str| {
        let call = json!({"id": id, "type": "function", "function": {"name": "skill", "arguments": arguments}});
        let said = json!([{"type": "text", "text": format!("do {id}")}, {"type": "text", "text": "twice"}]);
        [
            json!({"role": "assistant", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": said}),
        ]
    };
    let parts = json!([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "input_text", "text": "here"}, {"text": "and"}, "there"]);
    let mut conversation =
        vec![json!({"role": "user", "content": "\u{1}one\n"}), json!({"role": "user", "content": parts})];
    conversation.extend(skill("a", r#"{"skill":"swim"}"#));
    conversation.extend(skill("b", "{"));
    conversation
        .extend([json!({"role": "user", "content": text(30)}), json!({"role": "assistant", "content": "well"})]);
    conversation.push(json!({"role": "user", "content": "the newest"}));
    let policy = format!("{SIX}preserve_skills = {{}}\n");
    let plan = World::default().plan(&body_of(&conversation), &policy).0;
    let frame = &made(&plan).frame;
    let users = frame.user_messages.as_deref().unwrap();
    for said in ["\u{1}one", "look\nhere\nand\nthere", &text(30)] {
        assert!(users.contains(said.trim()), "{users}");
    }
    assert!(!users.contains("the newest"), "it is not summarised");
    assert!(frame.behind.contains("swim") && frame.behind.contains("do a\ntwice"), "{}", frame.behind);
    assert!(!frame.behind.contains("do b"), "bad arguments name no skill");
}

#[test]
fn a_users_message_with_half_a_surrogate_pair_is_kept() {
    let body = String::from_utf8(body("u a u a u a u").to_vec()).unwrap().replacen("\"hi\"", r#""see \ud83d this""#, 1);
    let plan = World::default().plan(&body.into(), SIX).0;
    let users = made(&plan).frame.user_messages.as_deref().unwrap();
    assert!(users.contains("see \u{FFFD} this"), "{users}");
}
