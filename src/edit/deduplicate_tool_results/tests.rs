//! Pointers to lines that are in sight, in all dialects.
#![expect(clippy::disallowed_types, reason = "bodies are written here")]

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{dialect, plan::Plan, planner::Planner, replay::planner_from_toml, span::splice};

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

const POLICY: &str = "policy.edits = ['patch_tool_calls', 'truncate_tool_results', 'clear_tool_results', 'deduplicate_tool_results']\n\
     recall = { via = 'http', public_url = 'http://h' }\n";

/// A call and its result.
#[derive(Clone, Debug)]
struct Round {
    tool: &'static str,
    arguments: Value,
    result: String,
}

fn round(tool: &'static str, arguments: Value, result: impl Into<String>) -> Round {
    Round { tool, arguments, result: result.into() }
}

/// So many lines of a file.
fn lines(file: &str, n: std::ops::Range<usize>) -> String {
    let line = |n| format!("    let value_{n} = compute(\"{file}\", {n}); // what it says, in so many words\n");
    n.map(line).collect::<Vec<_>>().concat()
}

fn numbered(text: &str) -> String {
    let line = |(n, line)| format!("{:>6}→{line}\n", n + 1);
    text.lines().enumerate().map(line).collect::<Vec<_>>().concat()
}

/// The items of a conversation with these rounds.
fn conversation(path: &str, rounds: &[Round]) -> Vec<Value> {
    let mut items = vec![json!({"role": "user", "content": "Go."})];
    for (n, Round { tool, arguments, result }) in rounds.iter().enumerate() {
        let id = format!("c{n}");
        match path {
            "/v1/messages" => {
                let call = json!({"type": "tool_use", "id": id, "name": tool, "input": arguments});
                let result = json!({"type": "tool_result", "tool_use_id": id, "content": result});
                items.push(json!({"role": "assistant", "content": [call]}));
                items.push(json!({"role": "user", "content": [result]}));
            }
            "/v1/responses" => {
                let arguments = arguments.to_string();
                items.push(json!({"type": "function_call", "call_id": id, "name": tool, "arguments": arguments}));
                items.push(json!({"type": "function_call_output", "call_id": id, "output": result}));
            }
            _ => {
                let function = json!({"name": tool, "arguments": arguments.to_string()});
                let call = json!({"id": id, "type": "function", "function": function});
                items.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
                items.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
            }
        }
    }
    items
}

fn planned(planner: &Planner, path: &str, items: &[Value]) -> (Plan, Vec<Value>, Bytes) {
    let array = if path == "/v1/responses" { "input" } else { "messages" };
    let bytes = Bytes::from(json!({"model": "m", "max_tokens": 9, array: items}).to_string());
    let plan = planner.plan(dialect::for_path(path).unwrap(), &bytes).unwrap();
    let sent: Bytes = splice(&bytes, &plan.splices).concat().into();
    let value: Value = serde_json::from_slice(&sent).unwrap();
    (plan, value[array].as_array().unwrap().clone(), sent)
}

/// The text of each result.
fn results(path: &str, items: &[Value]) -> Vec<String> {
    let text = |item: &Value| match path {
        "/v1/messages" => item["content"][0]["content"].as_str().map(str::to_owned),
        "/v1/responses" => item["output"].as_str().map(str::to_owned),
        _ => (item["role"] == "tool").then(|| item["content"].as_str().unwrap().to_owned()),
    };
    items.iter().filter_map(text).collect()
}

/// The results of the rounds as they are sent, which is the same in each dialect.
fn sent(policy: &str, rounds: &[Round]) -> Vec<String> {
    let of = |path: &&str| {
        let planner = planner_from_toml(&format!("{POLICY}{policy}")).unwrap();
        let (_, items, _) = planned(&planner, path, &conversation(path, rounds));
        results(path, &items)
    };
    let sent: Vec<_> = PATHS.iter().map(of).collect();
    assert_eq!(sent[0], sent[1]);
    assert_eq!(sent[0], sent[2]);
    sent[0].clone()
}

fn read(path: &str) -> Value {
    json!({"file_path": path})
}

fn is_whole(sent: &str, round: &Round) -> bool {
    sent == round.result
}

#[test]
fn what_was_read_before_becomes_a_pointer_between_its_first_and_last_line() {
    let (before, after) = (lines("a", 0..20), lines("a", 20..40));
    let rounds = [
        round("Read", read("a.rs"), numbered(&(before.clone() + &after))),
        round("Read", json!({"file_path": "a.rs", "offset": 5}), format!("new line\n{before}another\n")),
    ];
    let sent = sent("", &rounds);
    assert!(is_whole(&sent[0], &rounds[0]));
    let first = lines("a", 0..1);
    let (head, rest) = sent[1].split_once('[').unwrap();
    assert_eq!(head, format!("new line\n{first}"));
    let (pointer, tail) = rest.split_once("]\n").unwrap();
    assert!(
        pointer.starts_with("18 lines left out: lines 2-19 of the result of Read for a.rs above. The whole result: Read it with GET http://h/"),
        "{pointer}"
    );
    assert_eq!(tail, lines("a", 19..20) + "another\n");
}

#[test]
fn what_the_model_has_written_is_pointed_to() {
    let file = lines("b", 0..30);
    let rounds = [
        round("Write", json!({"file_path": "b.rs", "content": file}), "ok"),
        round("Read", read("b.rs"), numbered(&file)),
    ];
    let sent = sent("", &rounds);
    assert!(
        sent[1].contains("[28 lines left out: lines 2-29 of the arguments of Write for b.rs above."),
        "{}",
        sent[1]
    );
}

#[test]
fn what_is_asked_for_again_stays_whole() {
    let file = lines("c", 0..30);
    let again = || round("Read", read("c.rs"), file.clone());
    let rounds = [again(), round("Grep", json!({"pattern": "x"}), "nothing"), again(), again(), again()];
    let sent = sent("", &rounds);
    assert!(is_whole(&sent[0], &rounds[0]) && sent[2].contains("28 lines left out"));
    assert!(is_whole(&sent[3], &rounds[3]) && is_whole(&sent[4], &rounds[4]));
}

/// Lines of a file are left out once, and again after an edit of it.
#[test]
fn another_part_of_a_file_and_a_read_behind_an_edit_have_pointers() {
    let file = lines("k", 0..60);
    let part = |range: std::ops::Range<usize>| {
        let arguments = json!({"file_path": "k.rs", "offset": range.start, "limit": range.len()});
        round("Read", arguments, lines("k", range))
    };
    let edit = || round("Edit", json!({"file_path": "k.rs", "old_string": "x", "new_string": "y"}), "Updated.");
    let search = || round("Grep", json!({"pattern": "k"}), file.clone());
    let n_left_out = |rounds: &[Round]| {
        let n = |sent: &String| {
            let (_, rest) = sent.split_once('[')?;
            rest.split_once(" lines left out")?.0.parse::<usize>().ok()
        };
        sent("", rounds).iter().map(n).collect::<Vec<_>>()
    };
    assert_eq!(n_left_out(&[search(), part(2..20), part(30..50)]), [None, Some(16), Some(18)]);
    assert_eq!(n_left_out(&[search(), part(2..20), part(3..19)]), [None, Some(16), None]);
    // Lines 3 to 18 were left out, so only those from 19 on are.
    assert_eq!(n_left_out(&[search(), part(2..20), part(15..50)]), [None, Some(16), Some(29)]);
    assert_eq!(n_left_out(&[search(), part(2..20), part(15..50), part(4..49)]), [None, Some(16), Some(29), None]);
    let again = [search(), part(2..20), edit(), part(2..20), part(2..20), part(2..20), edit(), part(2..20)];
    assert_eq!(n_left_out(&again), [None, Some(16), None, Some(16), None, None, None, None]);
}

#[test]
fn the_read_behind_an_edit_that_failed_stays_whole() {
    let file = lines("d", 0..30);
    let edit = |result: &str| round("Edit", json!({"file_path": "d.rs", "old_string": "x", "new_string": "y"}), result);
    for (result, is_pointed) in [
        ("String to replace not found in file.", false),
        ("No replacement was performed, old_str `x` did not appear verbatim in d.rs.", false),
        ("Found 2 matches of the string to replace, but replace_all is false.", false),
        ("Failed to edit, expected 1 occurrence but found 2.", false),
        ("File has been modified since read, either by the user or by a linter.", false),
        ("File has not been read yet. Read it first before writing to it.", false),
        ("The file was updated.", true),
    ] {
        let rounds =
            [round("Read", read("d.rs"), file.clone()), edit(result), round("Read", read("d.rs"), file.clone())];
        assert_eq!(sent("", &rounds)[2].contains("lines left out"), is_pointed, "{result}");
    }
}

#[test]
fn pointers_count_the_lines_that_the_model_sees() {
    let (a, b) = (lines("a", 0..30), lines("b", 0..30));
    let rounds = [
        round("Read", read("a.rs"), a.clone()),
        round("Bash", json!({"command": "cat a.rs b.rs"}), a + &b),
        round("Bash", json!({"command": "cat b.rs"}), b),
    ];
    let sent = sent("", &rounds);
    // The second result is sent as 30 lines fewer 27.
    assert!(sent[2].contains("[28 lines left out: lines 5-32 of the result of Bash above."), "{}", sent[2]);
}

#[test]
fn pointers_that_are_not_put_in_do_not_count() {
    let file = format!("{}{}", lines("a", 0..10).replace(" // what it says, in so many words", ""), lines("b", 0..30));
    let (path, start) =
        (format!("{}/a.rs", "Some/Folder".repeat(16)), file.lines().take(10).collect::<Vec<_>>().join("\n"));
    let rounds = [
        round("Read", json!({"file_path": path, "limit": 10}), start),
        round("Bash", json!({"command": "cat a.rs b.rs"}), file.clone()),
        round("Bash", json!({"command": "cat b.rs"}), lines("b", 0..30)),
    ];
    let sent = sent("", &rounds);
    assert!(is_whole(&sent[1], &rounds[1]), "no pointer is as short as these lines: {}", sent[1]);
    assert!(sent[2].contains("lines 12-39 of the result of Bash above"), "{}", sent[2]);
}

#[test]
fn a_careful_policy_has_no_pointers() {
    let file = lines("h", 0..30);
    let rounds = [round("Read", read("h.rs"), file.clone()), round("Bash", json!({"command": "x"}), file)];
    let sent = sent("deduplicate_tool_results.min_lines = 0", &rounds);
    assert!(is_whole(&sent[1], &rounds[1]));
}

/// The same result in two conversations of one caller leads to the call of each.
#[test]
fn a_pointer_names_the_call_of_its_own_conversation() {
    let file = lines("g", 0..30);
    let planner = planner_from_toml(POLICY).unwrap();
    for (tool, path) in [("Read", "one.rs"), ("Read", "two.rs"), ("Fetch", "one.rs")] {
        let rounds = [round(tool, read(path), file.clone()), round("Bash", json!({"command": "x"}), file.clone())];
        let items = planned(&planner, PATHS[0], &conversation(PATHS[0], &rounds)).1;
        let pointer = results(PATHS[0], &items).remove(1);
        assert!(pointer.contains(&format!("of the result of {tool}")), "{pointer}");
        assert_eq!(pointer.contains(path), tool == "Read", "{pointer}");
    }
}

/// The model does not read what a compaction of the server represents.
#[test]
fn what_is_before_a_compaction_is_not_pointed_to() {
    let file = lines("c", 0..30);
    let rounds = [round("Read", read("c.rs"), file.clone()), round("Bash", json!({"command": "x"}), file)];
    let planner = planner_from_toml(POLICY).unwrap();
    for (path, compaction) in [
        (PATHS[1], json!({"role": "assistant", "content": [{"type": "compaction", "content": "So far."}]})),
        (PATHS[2], json!({"type": "compaction", "encrypted_content": "x"})),
    ] {
        let mut items = conversation(path, &rounds);
        items.insert(3, compaction);
        let (plan, ..) = planned(&planner, path, &items);
        assert!(plan.report.changes.is_empty(), "{plan}");
    }
}

#[test]
fn short_runs_and_tools_that_are_excluded_stay() {
    let file = lines("e", 0..30);
    let rounds = [
        round("Read", read("e.rs"), file.clone()),
        round("Bash", json!({"command": "x"}), format!("head\n{}tail\n", lines("e", 3..8))),
        round("Bash", json!({"command": "y"}), file.clone()),
        round("Bash", json!({"command": "z"}), "}\n".repeat(50)),
    ];
    let all = sent("", &rounds);
    assert!(is_whole(&all[1], &rounds[1]) && is_whole(&all[3], &rounds[3]) && !is_whole(&all[2], &rounds[2]));
    let excluded = sent("deduplicate_tool_results.exclude_tools = ['Ba*']", &rounds);
    assert!(is_whole(&excluded[2], &rounds[2]));
    let long = sent("deduplicate_tool_results.min_lines = 31", &rounds);
    assert!(is_whole(&long[2], &rounds[2]));
    let large = sent("deduplicate_tool_results.min_bytes = 9000", &rounds);
    assert!(is_whole(&large[2], &rounds[2]));
}

#[test]
fn what_stands_behind_four_mebibytes_has_no_pointers_and_what_stands_before_keeps_them() {
    let planner = planner_from_toml("policy.edits = ['deduplicate_tool_results']\nrecall.via = 'none'").unwrap();
    let sent = |rounds: &[Round]| results(PATHS[0], &planned(&planner, PATHS[0], &conversation(PATHS[0], rounds)).1);
    let other = |n: usize| round("Bash", json!({"command": n}), lines(&format!("other {n}"), 0..3000));
    let again = |n: usize| round("Read", read(&format!("{n}.rs")), lines("a", 0..30));
    let mut rounds = vec![again(0), again(1)];
    rounds.extend((0..10).map(other));
    rounds.push(again(2));
    assert!(sent(&rounds)[12].contains("28 lines left out"));
    rounds.truncate(12);
    rounds.extend((10..22).map(other));
    rounds.push(again(2));
    let n_bytes: usize = rounds.iter().map(|round| round.result.len()).sum();
    assert!(n_bytes > 4 << 20, "{n_bytes}");
    let sent = sent(&rounds);
    assert!(sent[1].contains("28 lines left out"), "{}", sent[1]);
    assert!(is_whole(&sent[24], &rounds[24]));
}

/// A clearing puts the text back in place of the pointers to it.
#[test]
fn the_text_is_back_where_its_source_is_cleared() {
    let file = lines("f", 0..40);
    let rounds = [
        round("Read", read("f.rs"), file.clone()),
        round("Bash", json!({"command": "cat f.rs"}), file.clone()),
        round("Bash", json!({"command": "true"}), "done"),
        round("Bash", json!({"command": "cat  f.rs"}), file),
    ];
    let sent = sent(
        "[clear_tool_results]\ntrigger = { tokens = 100 }\nkeep = { results = 2 }\nkeep_reads = 0\nclear_at_least = 0\nwhen = 'any'",
        &rounds,
    );
    assert!(sent[0].starts_with("[Cleared"), "{}", sent[0]);
    assert!(sent[1].starts_with("[Cleared"), "{}", sent[1]);
    assert!(is_whole(&sent[3], &rounds[3]), "{}", sent[3]);
}

/// A text of blocks that other texts may have.
fn blocks() -> impl Strategy<Value = String> {
    let block = (0..6_u8, 0..30_usize, 1..25_usize, any::<bool>());
    prop::collection::vec(block, 1..5).prop_map(|blocks| {
        let text = |(file, from, n, is_numbered): (u8, usize, usize, bool)| {
            let text = lines(&file.to_string(), from..from + n);
            if is_numbered { numbered(&text) } else { text }
        };
        blocks.into_iter().map(text).collect()
    })
}

/// Rounds, each with the number of rounds after which its result arrives.
fn rounds() -> impl Strategy<Value = Vec<(Round, usize)>> {
    let tool = prop::sample::select(vec!["Read", "Bash", "Write", "Edit"]);
    let one = (tool, 0..5_u8, blocks(), any::<bool>()).prop_map(|(tool, name, text, fails)| match tool {
        "Write" => round(tool, json!({"file_path": format!("{name}.rs"), "content": text}), "ok"),
        "Edit" if fails => round(tool, json!({"file_path": format!("{name}.rs")}), "not found"),
        "Edit" => round(tool, json!({"file_path": format!("{name}.rs")}), "ok"),
        _ => round(tool, json!({"file_path": format!("{name}.rs")}), text),
    });
    prop::collection::vec((one, prop_oneof![6 => Just(0_usize), 1 => 1..3_usize]), 1..14)
}

/// The requests of a session: a late result follows a message of the user and perhaps other rounds.
fn requests(path: &str, rounds: &[(Round, usize)]) -> Vec<Vec<Value>> {
    let all: Vec<_> = rounds.iter().map(|(round, _)| round.clone()).collect();
    let whole = conversation(path, &all);
    let (mut items, mut late, mut requests) = (vec![whole[0].clone()], Vec::<(usize, Value)>::new(), Vec::new());
    for (n, (_, delay)) in rounds.iter().enumerate() {
        let [call, result] = [whole[1 + 2 * n].clone(), whole[2 + 2 * n].clone()];
        items.push(call);
        if *delay == 0 {
            items.push(result);
        } else {
            late.push((n + delay, result));
            items.push(json!({"role": "user", "content": "Go on."}));
        }
        let (due, waiting) = late.into_iter().partition(|(at, _)| *at <= n);
        late = waiting;
        items.extend(due.into_iter().map(|(_, result): (usize, Value)| result));
        requests.push(items.clone());
    }
    requests
}

/// A line without its number.
fn said(line: &str) -> &str {
    let behind = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
    behind.strip_prefix('→').unwrap_or(line).trim_end()
}

/// Whether each pointer leads to the lines that it replaces: `sent` are the texts that the model sees, in order, and `came` the
/// result, of which the last of them is left.
fn leads_to_its_lines(sent: &[Vec<String>], came: &str) -> Result<(), String> {
    let (text, earlier) = sent.split_last().unwrap();
    let came: Vec<_> = came.lines().collect();
    let mut at = 0;
    for line in text {
        if !line.contains(" lines left out: lines ") {
            assert_eq!(came.get(at), Some(&line.as_str()));
            at += 1;
            continue;
        }
        let numbers: Vec<usize> = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let [n, from, to] = numbers[..3] else { return Err(line.clone()) };
        let is_there = earlier.iter().any(|earlier| {
            let there = earlier.get(from - 1..to).unwrap_or_default().iter().map(|line| said(line));
            there.eq(came[at..at + n].iter().map(|line| said(line)))
        });
        if !is_there || to + 1 - from != n {
            return Err(format!("{line}\n{earlier:#?}"));
        }
        at += n;
    }
    Ok(())
}

/// The texts that the model sees up to each result, in order: results, and what calls write.
fn seen(path: &str, items: &[Value]) -> Vec<(Vec<Vec<String>>, String)> {
    let (mut texts, mut seen) = (Vec::<Vec<String>>::new(), Vec::new());
    let split = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for item in items {
        let written = match path {
            "/v1/messages" => item["content"][0]["input"]["content"].as_str().map(str::to_owned),
            "/v1/responses" => item["arguments"].as_str().map(str::to_owned),
            _ => item["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned),
        };
        let written = written.map(|json| match serde_json::from_str::<Value>(&json) {
            Ok(arguments) => arguments["content"].as_str().unwrap_or_default().to_owned(),
            Err(_) => json,
        });
        texts.extend(written.as_deref().map(split));
        if let Some(text) = results(path, std::slice::from_ref(item)).first() {
            texts.push(split(text));
            let id = [&item["content"][0]["tool_use_id"], &item["call_id"], &item["tool_call_id"]];
            seen.push((texts.clone(), id.iter().find_map(|id| id.as_str()).unwrap().to_owned()));
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pointers_are_true_and_the_same_in_every_process_and_nothing_is_lost(rounds in rounds(), keep in 0..4_usize) {
        let clear = format!("[clear_tool_results]\ntrigger = {{ tokens = 3000 }}\nkeep = {{ results = {keep} }}\nwhen = 'any'");
        let policies = [(String::new(), true), (clear, false)];
        let is_late = rounds.iter().any(|(_, delay)| *delay > 0);
        for ((policy, keeps_all), path) in policies.iter().flat_map(|policy| PATHS.map(|path| (policy, path))) {
            let policy = format!("{POLICY}{policy}");
            let planner = planner_from_toml(&policy).unwrap();
            let mut before: Vec<Value> = Vec::new();
            for items in requests(path, &rounds) {
                let (plan, sent, bytes) = planned(&planner, path, &items);
                // Another process, which has seen nothing of it, decides the same.
                let anew = planner_from_toml(&policy).unwrap();
                prop_assert_eq!(&planned(&anew, path, &items).1, &sent);
                if *keeps_all && !is_late {
                    prop_assert_eq!(&sent[..before.len()], &before[..], "{}", path);
                }
                let stored: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes()).collect();
                for (texts, id) in seen(path, &sent) {
                    let n: usize = id.trim_start_matches('c').parse().unwrap();
                    let (came, text) = (&rounds[n].0.result, texts.last().unwrap().join("\n"));
                    if text.contains(" lines left out: lines ") {
                        prop_assert!(stored.iter().any(|stored| *stored == came.as_bytes()), "{}", text);
                        prop_assert_eq!(leads_to_its_lines(&texts, came), Ok(()), "{} {}", path, plan);
                    }
                }
                // A request that was edited gets no more pointers, except in a late result that was moved (decision 11).
                let again = planner.plan(dialect::for_path(path).unwrap(), &bytes).unwrap();
                let more = again.report.changes.iter().any(|change| change.edit == "deduplicate");
                prop_assert!(!keeps_all || is_late || !more, "{}", again);
                before = sent;
            }
        }
    }
}
