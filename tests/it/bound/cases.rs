//! Single cases of bound reasoning and of late results, by what the upstream receives.

use abridge_proxy::dialect;
use abridge_proxy::engine::edit_body;
use abridge_proxy::planner::Planner;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{COMMON, Dice, Outcome, Session, end, result, start, text, user};
use crate::support::signer::{Seen, Signer, fault};
use crate::support::summarizer::INSTRUCTION;

const CLEARS: &str = "clear_tool_results = { trigger = { tokens = 4000 }, keep = { results = 1 }, keep_reads = 0, clear_at_least = 0 }\n\
    truncate_tool_results.max_bytes = 100000\nrecall.public_url = \"http://abridge.test\"";

/// Edits a body under these settings, with no request before it.
fn edited(policy: &str, path: &str, body: &Value) -> Value {
    let planner = Planner::new(toml::from_str(&format!("{COMMON}\n{policy}")).unwrap());
    let edited = edit_body(&planner, dialect::for_path(path).unwrap(), body.to_string().into());
    serde_json::from_slice(&edited.body.concat()).unwrap()
}

fn call(session: &mut Session, signature: &str, lines: usize) {
    session.n_calls += 1;
    let id = format!("c{}", session.n_calls);
    let tool = json!({"type": "tool_use", "id": id, "name": "query", "input": {}});
    let thought = json!({"type": "thinking", "thinking": "", "signature": signature});
    session.messages.push(json!({"role": "assistant", "content": [thought, tool]}));
    session.messages.push(user(&[result(&id, lines)]));
}

fn says(session: &mut Session, signature: &str) {
    let thought = json!({"type": "thinking", "thinking": "", "signature": signature});
    session.messages.push(json!({"role": "assistant", "content": [thought, text("Done.")]}));
    session.messages.push(user(&[text("And the next thing?")]));
}

/// So many turns of two requests each.
async fn turns(session: &mut Session, through: Option<&crate::support::Abridge>, n: usize) {
    for _ in 0..n {
        let (outcome, signature) = session.ask(through, false).await;
        assert_eq!(outcome, Outcome::Answered);
        call(session, &signature, 90);
        let (outcome, signature) = session.ask(through, false).await;
        assert_eq!(outcome, Outcome::Answered);
        says(session, &signature);
    }
}

#[tokio::test]
async fn a_session_that_began_without_abridge_goes_on_through_it_after_any_number_of_turns() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let abridge = start(&signer, store.path(), CLEARS).await;
    for n in [4, 6, 7, 8, 9, 11, 13] {
        let mut session = Session::new(format!("after {n}"));
        // What abridge has sent for the others is not what was sent for this one.
        session.messages[0] = user(&[text(&format!("Begin with {n}."))]);
        turns(&mut session, None, n).await;
        turns(&mut session, Some(&abridge), 3).await;
    }
    let seen = signer.seen();
    assert!(seen.wrong.is_empty() && seen.invalid.is_empty(), "{seen:#?}");
}

#[tokio::test]
async fn a_pass_stays_when_the_goal_changes() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    for n in [3, 4, 7] {
        let mut session = Session::new(format!("goal {n}"));
        for goal in ["thrifty", "careful", "balanced"] {
            let policy = format!("{}\npolicy.goal = \"{goal}\"", CLEARS.replace("keep = { results = 1 }, ", ""));
            let abridge = start(&signer, store.path(), &policy).await;
            turns(&mut session, Some(&abridge), n).await;
            end(abridge).await;
        }
    }
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[tokio::test]
async fn thinking_that_was_made_without_a_tool_of_abridge_is_not_sent_with_it() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let mut session = Session::new("controls".to_owned());
    session.without_shell();
    for controls in [false, true, false] {
        let policy = format!("{CLEARS}\nrecall = {{ via = \"tool\", controls = {controls} }}");
        let policy = policy.replace("recall.public_url = \"http://abridge.test\"", "");
        let abridge = start(&signer, store.path(), &policy).await;
        turns(&mut session, Some(&abridge), 2).await;
        let tools = signer.last("controls")["tools"].to_string();
        assert_eq!((tools.contains("abridge_recall"), tools.contains("abridge_control_context")), (true, controls));
        end(abridge).await;
    }
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[tokio::test]
async fn what_answers_a_text_in_the_place_of_a_result_stays_after_it() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let abridge = start(&signer, store.path(), CLEARS).await;
    let mut session = Session::new("interrupted".to_owned());
    let (_, signature) = session.ask(Some(&abridge), false).await;
    call(&mut session, &signature, 9);
    session.messages.pop();
    let (_, signature) = session.ask(Some(&abridge), false).await;
    let before = signer.last("interrupted")["messages"].as_array().unwrap().clone();
    says(&mut session, &signature);
    let (outcome, _) = session.ask(Some(&abridge), false).await;
    let sent = signer.last("interrupted")["messages"].as_array().unwrap().clone();
    assert_eq!((outcome, &sent[..before.len()]), (Outcome::Answered, &before[..]));
    assert!(sent[before.len()]["content"].to_string().contains(&signature), "the thinking stays");
    assert!(signer.seen().wrong.is_empty() && signer.seen().invalid.is_empty(), "{:#?}", signer.seen());
}

/// The length of the messages that were sent last.
fn size(signer: &Signer, session: &Session) -> usize {
    signer.last(&session.name)["messages"].to_string().len()
}

#[tokio::test]
async fn a_pass_whose_request_got_no_answer_stays_when_a_late_result_comes() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let abridge = start(&signer, store.path(), CLEARS).await;
    for model in ["claude-opus-4-5", "claude-opus-5-5"] {
        let mut session = Session { model, ..Session::new(format!("unanswered {model}")) };
        let mut dice = Dice(7);
        for _ in 0..2 {
            let (_, signature) = session.ask(Some(&abridge), false).await;
            call(&mut session, &signature, 90);
        }
        let late = json!({"type": "tool_use", "id": "late", "name": "query", "input": {}});
        session.messages.push(json!({"role": "assistant", "content": [late]}));
        session.messages.push(user(&[text("Stop. Something else.")]));
        let (outcome, _) = session.ask(Some(&abridge), true).await;
        assert_eq!(outcome, Outcome::NoAnswer);
        let cleared = size(&signer, &session);
        assert!(cleared < 5_000, "the first result is cleared: {cleared}");
        session.late.push("late".to_owned());
        session.late_result(&mut dice);
        session.ask(Some(&abridge), false).await;
        let then = size(&signer, &session);
        assert!(then < cleared + 3_000, "{model}: what was cleared does not come back: {cleared}, then {then}");
    }
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[tokio::test]
async fn what_a_second_try_has_cleared_stays_cleared() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let policy = "policy.edits = ['patch_tool_calls', 'clear_tool_results']\nsecond_try.enabled = true\nclear_tool_results.trigger = { tokens = 900000 }\nrecall.public_url = \"http://abridge.test\"";
    let abridge = start(&signer, store.path(), policy).await;
    let mut session = Session { window: Some(15_000), ..Session::new("rescued".to_owned()) };
    turns(&mut session, Some(&abridge), 6).await;
    let n_refused = signer.seen().n_requests - 12;
    assert_eq!(n_refused, 1, "of twelve requests one is refused first");
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

/// Where a request does not fit the window, all that was read is cleared, whatever `keep` says: also when it comes again, and
/// asks for a shorter answer.
#[tokio::test]
async fn what_a_full_window_has_cleared_stays_cleared() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let policy = "policy.edits = ['patch_tool_calls', 'clear_tool_results']\nmodels = [{ match = '*', context_window = 9000 }]\nrecall.public_url = \"http://abridge.test\"";
    let abridge = start(&signer, store.path(), policy).await;
    for (model, longest) in [("claude-opus-4-5", 4000), ("claude-opus-5-5", 4000), ("claude-opus-5-5", 1000)] {
        let mut session = Session { model, ..Session::new(format!("full {model} {longest}")) };
        for (n, lines) in [100, 100, 100, 100, 100, 400, 300, 300, 300, 300].into_iter().enumerate() {
            session.ask(Some(&abridge), false).await;
            session.max_tokens = if n < 4 { 1000 } else { longest };
            session.ask(Some(&abridge), false).await;
            let sent = size(&signer, &session);
            assert!(session.max_tokens == 1000 || sent < 4500 * 4, "{}: {sent}", session.name);
            session.max_tokens = 1000;
            let (_, signature) = session.ask(Some(&abridge), false).await;
            assert_eq!(size(&signer, &session), sent, "{}", session.name);
            call(&mut session, &signature, lines);
        }
        assert!(signer.last(&session.name).to_string().contains("[Cleared"));
    }
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[test]
fn a_late_result_behind_a_system_message_moves_to_its_call() {
    let call = |id: &str| json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "query", "input": {}}]});
    let system = json!({"role": "system", "content": "A note."});
    let said = json!({"role": "assistant", "content": [text("I see.")]});
    let results = [user(&[result("a", 3)]), user(&[result("a", 3), text("And?")])];
    for late in results {
        let messages = json!([user(&[text("Go.")]), call("a"), user(&[text("Stop.")]), system, said, late]);
        let body = json!({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages});
        let sent = edited("", "/v1/messages", &body);
        assert_eq!(fault(&sent), None, "{sent:#}");
        assert!(sent.to_string().contains("<a> some line"), "the result is there: {sent:#}");
    }
}

/// How often something is in the messages that were sent last.
fn count(signer: &Signer, session: &Session, what: &str) -> usize {
    signer.last(&session.name)["messages"].to_string().matches(what).count()
}

#[tokio::test]
async fn with_a_sliding_frontier_nothing_comes_back_within_a_turn() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let policy = CLEARS.replace("clear_at_least = 0", "frontier = \"sliding\"");
    let abridge = start(&signer, store.path(), &policy).await;
    let mut session = Session::new("sliding".to_owned());
    let (mut cleared, mut thoughts) = (0, usize::MAX);
    for n in 0..16 {
        let (outcome, signature) = session.ask(Some(&abridge), false).await;
        assert_eq!(outcome, Outcome::Answered, "{n}");
        let now = count(&signer, &session, "[Cleared: ");
        assert!(now >= cleared, "{n}: {cleared} results were cleared, then {now}");
        let kept = count(&signer, &session, "\"thinking\":");
        assert!(kept <= thoughts.saturating_add(1), "{n}: {thoughts} thoughts, then {kept}");
        (cleared, thoughts) = (now, kept);
        if n % 4 == 3 { says(&mut session, &signature) } else { call(&mut session, &signature, 60) }
    }
    assert!(cleared > 3, "{cleared}");
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[tokio::test]
async fn where_thinking_is_bound_the_tool_that_abridge_adds_is_there_from_the_beginning() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let abridge = start(&signer, store.path(), "truncate_tool_results.max_bytes = 1500").await;
    let mut session = Session::new("tool".to_owned());
    session.without_shell();
    for (n, (lines, thoughts)) in [(5, 0), (90, 1), (5, 2), (5, 3), (90, 4)].into_iter().enumerate() {
        let (outcome, signature) = session.ask(Some(&abridge), false).await;
        assert_eq!(outcome, Outcome::Answered, "{n}");
        assert_eq!(count(&signer, &session, "\"thinking\":"), thoughts, "{n}");
        let has_tool = signer.last(&session.name)["tools"].to_string().contains("abridge_recall");
        assert!(has_tool, "{n}");
        call(&mut session, &signature, lines);
    }
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[tokio::test]
async fn a_summary_that_another_branch_made_takes_the_thinking_made_without_it() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let policy = format!(
        "policy.edits = ['patch_tool_calls', 'summarize']\nsummarize = {{ mode = \"blocking\", trigger = {{ tokens = 4000 }}, keep = {{ rounds = 2 }}, instruction = \"{INSTRUCTION}\" }}"
    );
    let abridge = start(&signer, store.path(), &policy).await;
    let mut one = Session::new("one".to_owned());
    turns(&mut one, Some(&abridge), 3).await;
    let mut other = Session { name: "other".to_owned(), ..one.clone() };
    for session in [&mut one, &mut other] {
        session.messages.push(user(&[text(&session.name)]));
    }
    let is_summarised = |session: &Session| count(&signer, session, "The user asked for much") > 0;
    turns(&mut other, Some(&abridge), 1).await;
    assert!(!is_summarised(&other), "it is too short");
    turns(&mut one, Some(&abridge), 4).await;
    assert!(is_summarised(&one));
    turns(&mut other, Some(&abridge), 2).await;
    assert!(is_summarised(&other), "the summary of the first branch");
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

#[tokio::test]
async fn withheld_passes_do_not_keep_thinking_that_a_late_result_makes_invalid() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let abridge = start(&signer, store.path(), "reasoning.bound = \"withhold\"").await;
    let mut session = Session::new("withheld".to_owned());
    turns(&mut session, Some(&abridge), 1).await;
    let late = json!({"type": "tool_use", "id": "late", "name": "query", "input": {}});
    session.messages.push(json!({"role": "assistant", "content": [late]}));
    session.messages.push(user(&[text("Stop. Something else.")]));
    turns(&mut session, Some(&abridge), 1).await;
    assert_eq!(count(&signer, &session, "\"thinking\":"), 3);
    session.messages.push(user(&[result("late", 5)]));
    turns(&mut session, Some(&abridge), 1).await;
    assert_eq!(count(&signer, &session, "\"thinking\":"), 1, "what was made after the placeholder is left out");
    assert!(signer.seen().wrong.is_empty(), "{:#?}", signer.seen().wrong);
}

fn rounds(n: usize, lines: usize) -> Vec<Value> {
    let round = |n: usize| {
        let output = format!("<{n}> {}", "some line of the output of it\n".repeat(lines));
        [
            json!({"type": "reasoning", "id": format!("rs_{n}"), "summary": [], "encrypted_content": "x".repeat(800)}),
            json!({"id": format!("fc_{n}"), "type": "function_call", "call_id": format!("c{n}"), "name": "query", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": format!("c{n}"), "output": output}),
        ]
    };
    let said = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}], "id": "msg_1"});
    let user = |text: &str| json!({"role": "user", "content": text});
    let middle = (0..n).flat_map(round);
    [user("Go.")].into_iter().chain(middle).chain([said, user("And?")]).collect()
}

fn responses(items: &[Value]) -> Value {
    json!({"model": "gpt-5", "store": false, "input": items})
}

#[test]
fn items_lose_their_ids_with_the_reasoning_before_them() {
    let policy = format!("{CLEARS}\nreasoning.models = [\"gpt-5\"]");
    let sent = edited(&policy, "/v1/responses", &responses(&rounds(5, 150)));
    let texts = sent["input"].to_string();
    assert!(texts.contains("[Cleared: "), "a pass was made: {sent:#}");
    assert!(!texts.contains("rs_") && !texts.contains("fc_"), "{sent:#}");
    assert_eq!(texts.matches("\"function_call\"").count(), 5);
    let untouched = edited("reasoning.models = [\"gpt-5\"]", "/v1/responses", &responses(&rounds(5, 1)));
    assert!(untouched["input"].to_string().contains("fc_1"));
}

#[test]
fn a_pass_that_changes_nothing_leaves_reasoning() {
    // Beside a reference no call is filtered.
    let mut items = rounds(5, 1);
    for n in (0..5).rev() {
        items.insert(2 + 3 * n, json!({"type": "item_reference", "id": "x"}));
    }
    let policy = "reasoning.models = [\"gpt-5\"]\nfilter_tool_calls.max_tool_calls = 1";
    let sent = edited(policy, "/v1/responses", &responses(&items));
    let n_calls = sent["input"].to_string().matches("\"function_call\"").count();
    assert_eq!(n_calls, 5, "no call was left out: {sent:#}");
    assert_eq!(sent["input"].to_string().matches("encrypted_content").count(), 5, "{sent:#}");
}

/// Whatever the sizes, what was cleared before the result came is cleared after it.
#[test]
fn a_late_result_behind_an_item_of_the_server_brings_nothing_back() {
    let mut n_cleared = 0;
    for lines in 20..110 {
        let mut items = rounds(2, lines);
        let late = json!({"type": "function_call", "call_id": "late", "name": "query", "arguments": "{}"});
        let said = items.len() - 2;
        items.splice(4..4, [late, json!({"role": "user", "content": "Go on."})]);
        items.insert(said + 2, json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}));
        let before = edited(CLEARS, "/v1/responses", &responses(&items));
        items.push(
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}),
        );
        items.push(json!({"type": "function_call_output", "call_id": "late", "output": "late"}));
        let after = edited(CLEARS, "/v1/responses", &responses(&items));
        let cleared = |sent: &Value| sent["input"].to_string().matches("[Cleared: ").count();
        n_cleared += cleared(&before);
        assert!(cleared(&after) >= cleared(&before), "{lines} lines: {after:#}");
    }
    assert!(n_cleared > 0);
}

/// The most bytes of messages that were sent in one turn of so many calls.
async fn most_in_a_turn(kind: &str, n_calls: usize) -> (usize, Seen) {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    let abridge = start(&signer, store.path(), CLEARS).await;
    let mut session = Session { thinking: json!({"type": kind}), ..Session::new(format!("one turn, {kind}")) };
    let mut most = 0;
    for _ in 0..n_calls {
        let (outcome, signature) = session.ask(Some(&abridge), false).await;
        assert_eq!(outcome, Outcome::Answered);
        most = most.max(size(&signer, &session));
        call(&mut session, &signature, 90);
    }
    (most, signer.seen())
}

#[tokio::test]
async fn a_long_turn_is_cleared_within_it_unless_its_thinking_has_a_budget() {
    let (adaptive, seen) = most_in_a_turn("adaptive", 30).await;
    assert!(seen.wrong.is_empty() && seen.invalid.is_empty(), "{seen:#?}");
    let (with_budget, seen) = most_in_a_turn("enabled", 30).await;
    assert!(seen.wrong.is_empty() && seen.invalid.is_empty(), "{seen:#?}");
    assert!(4 * adaptive < with_budget, "{adaptive} and {with_budget} bytes at most");
}

/// Its client shows no trace of the placeholder, so the upstream refuses the thinking after it, once.
#[tokio::test]
async fn a_late_result_that_its_client_writes_into_its_place_costs_one_second_try() {
    let (signer, store) = (Signer::start().await, TempDir::new().unwrap());
    for policy in ["policy.edits = ['patch_tool_calls']", CLEARS] {
        let abridge = start(&signer, &store.path().join(policy.len().to_string()), policy).await;
        let mut session = Session::new(format!("in place {}", policy.len()));
        turns(&mut session, Some(&abridge), 1).await;
        let late = json!({"type": "tool_use", "id": "late", "name": "query", "input": {}});
        session.messages.push(json!({"role": "assistant", "content": [late]}));
        let place = session.messages.len();
        session.messages.push(user(&[text("Stop. Something else.")]));
        turns(&mut session, Some(&abridge), 1).await;
        session.messages[place] = user(&[result("late", 5), text("Stop. Something else.")]);
        let before = signer.seen();
        turns(&mut session, Some(&abridge), 3).await;
        let seen = signer.seen();
        let n_refused = seen.wrong.len() - before.wrong.len();
        assert!(n_refused <= 1 && seen.invalid.is_empty(), "{n_refused}: {seen:#?}");
    }
}
