//! Both arrays side by side: by hand, and for every fixture.

use std::path::Path;

use super::*;
use crate::{
    dialect,
    engine::edit_body,
    plan::{Change, Layout, Sizes},
    recording::Exchange,
    replay::{find_exchanges, planner_from_toml},
};

fn chat() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

/// The body as a policy leaves it, and the report if it was understood.
fn edited(policy: &str, body: &Bytes) -> (Bytes, Option<Report>) {
    let edited = edit_body(&planner_from_toml(policy).unwrap(), chat(), body.clone());
    (edited.body.concat().into(), edited.report)
}

fn body(messages: &[&str]) -> Bytes {
    format!(r#"{{"messages":[{}]}}"#, messages.join(",")).into()
}

fn calls(ids: &[&str]) -> String {
    let call = |id: &&str| {
        format!(r#"{{"id":"{id}","type":"function","function":{{"name":"ls","arguments":"{{\"a\":\"{id}\"}}"}}}}"#)
    };
    format!(r#"{{"role":"assistant","tool_calls":[{}]}}"#, ids.iter().map(call).collect::<Vec<_>>().join(","))
}

fn result(id: &str, text: &str) -> String {
    format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"{text}"}}"#)
}

const GO: &str = r#"{"role":"user","content":"go"}"#;

fn brief(message: &Message) -> (usize, Option<usize>, State, Option<&str>, Option<&str>) {
    (message.index, message.at, message.state, message.before.as_deref(), message.after.as_deref())
}

#[test]
fn puts_in_moves_and_drops() {
    let body = body(&[GO, &calls(&["a", "b"]), GO, &result("b", "late"), &result("x", "orphan"), &calls(&["c"]), GO]);
    let (after, report) = edited("", &body);
    let messages = messages(chat(), &body, &after, &report.unwrap()).unwrap();
    let called = "[call a] ls {\"a\":\"a\"}\n[call b] ls {\"a\":\"b\"}";
    let missing = |id| format!("Tool call ls ({id}) has no result: it was interrupted before it finished.");
    let expected = [
        (0, Some(0), State::Same, Some("go"), None),
        (1, Some(1), State::Same, Some(called), None),
        (1, Some(2), State::Inserted, None, Some(&*missing("a"))),
        (3, Some(3), State::Moved, Some("late"), None),
        (2, Some(4), State::Same, Some("go"), None),
        (4, None, State::Dropped, Some("orphan"), None),
        (5, Some(5), State::Same, Some("[call c] ls {\"a\":\"c\"}"), None),
        (5, Some(6), State::Inserted, None, Some(&*missing("c"))),
        (6, Some(7), State::Same, Some("go"), None),
    ];
    assert_eq!(messages.iter().map(brief).collect::<Vec<_>>(), expected);
    let named: Vec<_> = messages.iter().map(|message| (&*message.role, message.name.as_deref())).collect();
    assert_eq!(named[2..4], [("tool", Some("ls")); 2]);
}

#[test]
fn a_summary_stands_behind_what_it_stands_for() {
    let before = body(&[r#"{"role":"system","content":"s"}"#, GO, &calls(&["a"]), &result("a", "x"), GO]);
    let after = body(&[r#"{"role":"system","content":"s"}"#, r#"{"role":"user","content":"so far"}"#, GO]);
    let change = Change {
        edit: "summarize",
        action: Action::Summarize { from: 1, to: 4 },
        call_id: String::new(),
        tool_name: None,
        bytes: Sizes::default(),
        tokens: None,
        handles: Vec::new(),
        why: None,
    };
    let report = Report { changes: vec![change], ..Report::default() };
    let found = messages(chat(), &before, &after, &report).unwrap();
    let brief: Vec<_> = found.iter().map(|m| (m.index, m.at, m.state, m.before.is_some(), m.after.is_some())).collect();
    let expected = [
        (0, Some(0), State::Same, true, false),
        (1, None, State::Summarised, true, false),
        (2, None, State::Summarised, true, false),
        (3, None, State::Summarised, true, false),
        (1, Some(1), State::Summarised, false, true),
        (4, Some(2), State::Same, true, false),
    ];
    assert_eq!(brief, expected);
    assert_eq!(messages(chat(), &before, &before, &report), None, "these are not what the report is about");
}

#[test]
fn a_round_that_is_reopened_stands_behind_the_summary() {
    let before = body(&[GO, &calls(&["a"]), GO, GO, &result("a", "late")]);
    let after = body(&[r#"{"role":"user","content":"so far"}"#, &calls(&["a"]), &result("a", "late"), GO]);
    let change = |action| Change {
        edit: "e",
        action,
        call_id: String::new(),
        tool_name: None,
        bytes: Sizes::default(),
        tokens: None,
        handles: Vec::new(),
        why: None,
    };
    let actions = [
        Action::Summarize { from: 0, to: 1 },
        Action::Summarize { from: 2, to: 3 },
        Action::Move { message: 4, behind: 1 },
    ];
    let layout = Layout { gone: Vec::new(), placed: vec![(1, Some(4))] };
    let report = Report { changes: actions.map(change).to_vec(), layout, ..Report::default() };
    let found = messages(chat(), &before, &after, &report).unwrap();
    let brief: Vec<_> = found.iter().map(|m| (m.index, m.at, m.state)).collect();
    let expected = [
        (0, None, State::Summarised),
        (0, Some(0), State::Summarised),
        (1, Some(1), State::Same),
        (4, Some(2), State::Moved),
        (2, None, State::Summarised),
        (3, Some(3), State::Same),
    ];
    assert_eq!(brief, expected);
}

#[test]
fn so_many_messages_and_no_more_are_looked_at() {
    let many = |n: usize| body(&vec![GO; n]);
    let change = |action| Change {
        edit: "e",
        action,
        call_id: String::new(),
        tool_name: None,
        bytes: Sizes::default(),
        tokens: None,
        handles: Vec::new(),
        why: None,
    };
    let report =
        |action: Option<Action>| Report { changes: action.map(change).into_iter().collect(), ..Report::default() };
    let n_found = |n_before, n_after, action| {
        messages(chat(), &many(n_before), &many(n_after), &report(action)).map(|found| found.len())
    };
    assert_eq!(n_found(MAX_MESSAGES, MAX_MESSAGES, None), Some(MAX_MESSAGES));
    assert_eq!(n_found(MAX_MESSAGES + 1, MAX_MESSAGES, Some(Action::Drop { message: 0 })), None);
    assert_eq!(n_found(MAX_MESSAGES, MAX_MESSAGES + 1, Some(Action::Insert { behind: 0 })), None);
}

#[test]
fn a_message_reads_as_a_person_would_have_it() {
    let shown = |message: &str| {
        let body = body(&[message]);
        messages(chat(), &body, &body, &Report::default()).unwrap().remove(0).before.unwrap()
    };
    let part = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let call = r#"{"id":"c","type":"function","function":{"name":"ls","arguments":"{}"}}"#;
    let assistant = |content: &str| format!(r#"{{"role":"assistant","content":{content},"tool_calls":[{call}]}}"#);
    assert_eq!(shown(r#"{"role":"user","content":""}"#), "");
    assert_eq!(shown(&assistant("\"\"")), "[call c] ls {}");
    assert_eq!(shown(&assistant("\"so\"")), "so\n[call c] ls {}");
    assert_eq!(shown(&assistant(&format!("[{},{}]", part(""), part("b")))), "\nb\n[call c] ls {}");
    assert_eq!(shown(&format!(r#"{{"role":"user","content":[{},{}]}}"#, part(""), part("b"))), "\nb");
    assert_eq!(shown(r#"{"role":"user"}"#), r#"{"role":"user"}"#);
}

#[test]
fn long_texts_are_cut_and_keep_their_lengths() {
    let long = "é".repeat(MAX_UNCHANGED_TEXT);
    let results: Vec<_> = (0..200).map(|_| result("x", &long)).collect();
    let body = body(&results.iter().map(String::as_str).collect::<Vec<_>>());
    let found = messages(chat(), &body, &body, &Report::default()).unwrap();
    assert!(found.iter().all(|message| message.before_bytes == Some(2 * MAX_UNCHANGED_TEXT)));
    assert_eq!(found[0].before.as_ref().map(String::len), Some(MAX_UNCHANGED_TEXT));
    let gone = body_of_one(&"x".repeat(2 * MAX_TEXT));
    let after = body_of_one("y");
    let found_changed = messages(chat(), &gone, &after, &Report::default()).unwrap();
    assert_eq!((found_changed[0].state, found_changed[0].before.as_ref().unwrap().len()), (State::Patched, MAX_TEXT));

    let many: Vec<_> = (0..6).map(|n| result("x", &n.to_string().repeat(MAX_TEXT))).collect();
    let before: Vec<_> = many.iter().map(String::as_str).collect();
    let short = [GO; 6];
    let found = messages(chat(), &self::body(&before), &self::body(&short), &Report::default()).unwrap();
    let kept: usize = found.iter().map(|message| message.before.as_ref().unwrap().len()).sum();
    assert!(kept <= MAX_BYTES + 6 * HEAD, "{kept}");
    assert_eq!(found[5].before, Some("5".repeat(HEAD)));
}

fn body_of_one(text: &str) -> Bytes {
    body(&[&result("x", text)])
}

#[test]
fn every_fixture_can_be_laid_side_by_side() {
    use State::{Cleared, Cut, Dropped, Filtered, Inserted, Moved, Same};
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let (mut n_edited, mut states) = (0, std::collections::BTreeSet::new());
    for folder in find_exchanges(&root).unwrap() {
        let exchange = Exchange::read(&folder).unwrap();
        let (body, policy) = (exchange.request, exchange.policy.unwrap_or_default());
        let Ok(conversation) = chat().parse(&body) else { continue };
        let (after, Some(report)) = edited(&policy, &body) else { continue };
        let name = folder.display();
        let found = messages(chat(), &body, &after, &report).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(
            found.iter().filter(|message| message.before.is_some()).count(),
            conversation.elements.len(),
            "{name}"
        );
        let sent: Vec<_> = found.iter().filter_map(|message| message.at).collect();
        assert_eq!(sent, (0..report.messages_after).collect::<Vec<_>>(), "{name}");
        let is_changed = |message: &&Message| message.state != Same;
        assert_eq!(found.iter().filter(is_changed).count() > 0, !report.changes.is_empty(), "{name}");
        assert!(found.iter().all(|message| message.state != State::Patched), "{name}: a change without a reason");
        n_edited += usize::from(!report.changes.is_empty());
        states.extend(found.iter().map(|message| message.state));
    }
    assert!(n_edited > 20, "{n_edited}");
    assert!([Same, Inserted, Moved, Cut, Cleared, Dropped, Filtered].iter().all(|state| states.contains(state)));
}

#[test]
fn texts_in_parts_of_all_kinds_and_with_half_a_surrogate_pair_are_shown() {
    let parts =
        r#"{"role":"user","content":["a \ud83d",{"text":"b"},{"type":"input_text","text":"c"},{"type":"image_url"}]}"#;
    let body = body(&[parts, &calls(&["a"])]);
    let (after, report) = edited("", &body);
    let messages = messages(chat(), &body, &after, &report.unwrap()).unwrap();
    assert_eq!(brief(&messages[0]), (0, Some(0), State::Same, Some("a \u{FFFD}\nb\nc"), None));
}

fn title_of(path: &str, body: &str) -> Option<String> {
    title(dialect::for_path(path).unwrap(), &Bytes::copy_from_slice(body.as_bytes()))
}

#[test]
fn it_is_the_words_of_the_user_and_not_what_clients_put_before_them() {
    let messages = r#"{"model":"m","messages":[{"role":"user","content":[
        {"type":"text","text":"<system-reminder>Be brief.</system-reminder>"},
        {"type":"text","text":"<system-reminder>a</system-reminder>\n Fix  the\nbuild "}]},
        {"role":"assistant","content":"Yes."},{"role":"user","content":"And the tests"}]}"#;
    assert_eq!(title_of("/v1/messages", messages).as_deref(), Some("Fix the build"));
    let responses = r#"{"model":"m","input":[{"role":"developer","content":"Rules"},
        {"role":"user","content":[{"type":"input_text","text":"<environment_context>x</environment_context>"}]},
        {"role":"user","content":[{"type":"input_text","text":"Why <b>?"}]}]}"#;
    assert_eq!(title_of("/v1/responses", responses).as_deref(), Some("Why <b>?"));
    let chat = |content: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
        title_of("/v1/chat/completions", &body)
    };
    assert_eq!(chat("<p>not</q> a section").as_deref(), Some("<p>not</q> a section"));
    assert_eq!(chat(" "), None);
    assert_eq!(chat(&"é ".repeat(500)).unwrap().chars().count(), MAX_TITLE);
    assert_eq!(chat(&"é".repeat(500)).unwrap().chars().count(), MAX_TITLE);
}
