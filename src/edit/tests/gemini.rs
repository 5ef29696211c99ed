//! The edits on conversations in Gemini's API, where a result is an object in a part of the user's content.
//!
//! Shorthand, one word a content, parts joined by `+`: `m:` and `u:` begin contents of the model and the user. `c1` is a call, `s1`
//! one with a signature, `r1*400` a result of 400 bytes, `x` a text. A call with a letter, `cf`, has no id and is of that function.
//! In what comes out, `p1` is a result that was put in, `r1!` one that was cleared, `r1~` a truncated one.
#![expect(clippy::disallowed_types, reason = "contents are looked at by eyes of our own")]

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    dialect::{self, Dialect},
    payload::ChainKey,
    plan::{Need, Plan},
    planner::{PlanSettings, Planner},
    span::splice,
    summary::{Summary, SummaryState},
};

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1beta/models/gemini-3-pro:generateContent").unwrap()
}

fn part(word: &str) -> Value {
    let (kind, rest) = word.split_at(1);
    let (id, length) = rest.split_once('*').unwrap_or((rest, "2"));
    let has_id = id.starts_with(|c: char| c.is_ascii_digit());
    let name = if has_id { "run" } else { id };
    let mut part = match kind {
        "c" => json!({"functionCall": {"name": name, "args": {"command": format!("ls {id}")}}}),
        "s" => json!({"functionCall": {"name": name, "args": {"command": id}}, "thoughtSignature": "c2ln"}),
        "r" => {
            let text = "word ".repeat(length.parse::<usize>().unwrap().div_ceil(5));
            json!({"functionResponse": {"name": name, "response": {"output": text, "exit": 0}}})
        }
        _ => json!({"text": "said"}),
    };
    for key in ["functionCall", "functionResponse"] {
        if let Some(function) = part.get_mut(key).filter(|_| has_id) {
            function["id"] = id.into();
        }
    }
    part
}

fn body(words: &str) -> Bytes {
    let content = |word: &str| {
        let (role, parts) = word.split_once(':').unwrap_or((word, "x"));
        let role = if role == "m" { "model" } else { "user" };
        json!({"role": role, "parts": parts.split('+').map(part).collect::<Vec<_>>()}).to_string()
    };
    let contents: Vec<_> = words.split_whitespace().map(content).collect();
    format!(r#"{{ "contents" : [{}], "generationConfig":{{"temperature":1.0}}}}"#, contents.join(" , ")).into()
}

fn word(part: &Value) -> String {
    let of = |function: &Value| function["id"].as_str().or(function["name"].as_str()).unwrap().to_owned();
    let said = |key: &str| part["functionResponse"]["response"][key].as_str().unwrap_or_default().to_owned();
    if let Some(call) = part.get("functionCall") {
        let kind = if part.get("thoughtSignature").is_some() { "s" } else { "c" };
        let emptied = if call["args"].as_object().unwrap().is_empty() { "-" } else { "" };
        return format!("{kind}{}{emptied}", of(call));
    }
    let Some(result) = part.get("functionResponse") else { return "x".to_owned() };
    match (said("error"), said("output")) {
        (error, _) if !error.is_empty() => {
            assert!(result["name"].is_string() && error.contains("has no result"), "{result}");
            format!("p{}", of(result))
        }
        (_, output) if output.starts_with("[Cleared") => format!("r{}!", of(result)),
        (_, output) if output.contains("left out here") => format!("r{}~", of(result)),
        (_, output) if output.starts_with("[Same") || output.contains("ame output") => format!("r{}=", of(result)),
        _ => format!("r{}", of(result)),
    }
}

fn words(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    let contents = body["contents"].as_array().unwrap().iter().map(|content| {
        let parts: Vec<_> = content["parts"].as_array().unwrap().iter().map(word).collect();
        let role = content["role"].as_str().unwrap().get(..1).unwrap();
        if parts == ["x"] { role.to_owned() } else { format!("{role}:{}", parts.join("+")) }
    });
    contents.collect::<Vec<_>>().join(" ")
}

/// By the API's rules: the content after one with calls has as many results, and no other has any; and each step of the turn
/// begins with a signature, if the model signs.
fn is_valid(body: &[u8]) -> Result<(), String> {
    let body: Value = serde_json::from_slice(body).unwrap();
    let contents = body["contents"].as_array().unwrap();
    let count = |content: Option<&Value>, key: &str| {
        let parts = content.and_then(|content| content["parts"].as_array()).into_iter().flatten();
        parts.filter(|part| part.get(key).is_some()).count()
    };
    for (n, content) in contents.iter().enumerate() {
        let (calls, results) = (count(Some(content), "functionCall"), count(contents.get(n + 1), "functionResponse"));
        if calls != results {
            return Err(format!("{calls} calls, {results} results behind content {n}"));
        }
        if content["parts"].as_array().is_none_or(Vec::is_empty) {
            return Err(format!("content {n} is empty"));
        }
    }
    let turn = contents.iter().rposition(|content| count(Some(content), "text") > 0 && content["role"] == "user");
    let steps =
        contents.iter().skip(turn.unwrap_or_default()).filter(|content| count(Some(content), "functionCall") > 0);
    let signed: Vec<_> = steps
        .map(|step| {
            let first = step["parts"].as_array().unwrap().iter().find(|part| part.get("functionCall").is_some());
            first.unwrap().get("thoughtSignature").is_some()
        })
        .collect();
    let all_or_none = signed.iter().all(|is| *is) || signed.iter().all(|is| !*is);
    if all_or_none { Ok(()) } else { Err("a step without a signature".to_owned()) }
}

fn planner(settings: &str) -> Planner {
    let settings: PlanSettings = toml::from_str(settings).unwrap();
    Planner::new(settings)
}

fn edited(came: &Bytes, settings: &str) -> (Plan, Bytes) {
    let plan = planner(settings).plan(dialect(), came).unwrap();
    let out = splice(came, &plan.splices).concat();
    (plan, out.into())
}

fn check(came: &str, settings: &str, expected: &str) {
    let came = body(came);
    let (plan, out) = edited(&came, settings);
    assert_eq!(words(&out), expected, "{}\n{plan}", words(&came));
    assert_eq!(is_valid(&out), Ok(()), "{}", words(&out));
    let (again, _) = edited(&out, settings);
    assert!(again.is_empty(), "{again}");
}

const PATCH: &str = "policy.edits = [\"patch_tool_calls\"]";

#[test]
fn results_are_put_in_moved_and_left_out() {
    for (came, expected) in [
        ("u m:c1", "u m:c1 u:p1"),
        ("u m:c1 u", "u m:c1 u:p1 u"),
        ("u m:s1+c2+c3 u:r2+x", "u m:s1+c2+c3 u:r2+p1+p3+x"),
        ("u m:cf+cg u:rg", "u m:cf+cg u:rg+pf"),
        ("u m:cf+cf u:rf", "u m:cf+cf u:rf+pf"),
        ("u m:c1 u:x+r1", "u m:c1 u:r1 u"),
        ("u m:c1 u u:r1", "u m:c1 u:r1 u"),
        ("u m:cf u u:rf", "u m:cf u:rf u"),
        ("u:r9+x m u", "u m u"),
        ("u m:c1 m:c2 u:r2", "u m:c1 u:p1 m:c2 u:r2"),
        ("u m:c1 m u:r1+x", "u m:c1 u:r1 m u"),
        ("u m:cf m:cf u:rf+rf", "u m:cf u:rf m:cf u:rf"),
        ("u:r9 u:r8 m u", "u m u"), // a text of the user, as the model does not begin
        ("u m:c1 u:r9+r1+x", "u m:c1 u:r1+x"),
        ("u m:c1+c2 u:r1+r2 m:cf u:rf m u", "u m:c1+c2 u:r1+r2 m:cf u:rf m u"),
        // Between two contents of the model, and at the end, is the user.
        ("u m:c1 u m u:r1", "u m:c1 u:r1 u m u"),
        ("u m u:r9 m:c1 u:r1", "u m u m:c1 u:r1"),
    ] {
        check(came, PATCH, expected);
    }
    let came = body("u m:s1+cf u:r1+rf m u");
    let (plan, _) = edited(&came, PATCH);
    assert!(plan.splices.is_empty(), "{plan}");
}

/// As Google's API refuses them in several contents (cloudwego/eino-ext#571, crewAIInc/crewAI#4693, docker/docker-agent#2959).
#[test]
fn results_of_a_batch_are_gathered_in_one_content() {
    const PATCH: &str = "policy.edits = [\"patch_tool_calls\"]";
    check("u m:c1+c2 u:r1 u:r2 m", PATCH, "u m:c1+c2 u:r1+r2 m");
    check("u m:c1+c2+c3 u:r2 u:r1 m", PATCH, "u m:c1+c2+c3 u:r2+r1+p3 m");
    check("u m:cf+cf+cg u:rf u:rg u:rf u", PATCH, "u m:cf+cf+cg u:rf+rf+rg u");
    check("u m:s1+c2 u:r1 u u:r2 m", PATCH, "u m:s1+c2 u:r1+r2 u m");
    check("u m:c1+c2 u:r9 u:r1 u:r2 m", PATCH, "u m:c1+c2 u:r1+r2 m");
}

/// No call is taken for missing because it is written in a way that is not read.
#[test]
fn results_of_calls_that_are_not_read_stay() {
    let of = |call: &str| {
        let result = r#"{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"A"}}}]}"#;
        Bytes::from(format!(r#"{{"contents":[{{"role":"user","parts":[{{"text":"go"}}]}},{call},{result}]}}"#))
    };
    for call in [
        r#"{"parts":[{"functionCall":{"name":"f","args":{}}}]}"#,
        r#"{"role":"assistant","parts":[{"functionCall":{"name":"f","args":{}}}]}"#,
    ] {
        let came = of(call);
        assert_eq!(edited(&came, "").1, came, "{call}");
    }
    let object = of(r#"{"role":"model","parts":{"functionCall":{"name":"f","args":{}}}}"#);
    assert!(dialect().parse(&object).is_err());
}

/// Each text is too short to be cut, but all together are long.
#[test]
fn a_response_of_many_small_texts_is_truncated() {
    let files: Vec<_> = (0..4000).map(|n| format!("src/a/long/path/to/file_{n}.rs")).collect();
    let result = json!({"functionResponse": {"name": "f", "response": {"files": files}}});
    let call = json!({"functionCall": {"name": "f", "args": {}}});
    let came = json!({"contents": [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]});
    let (plan, sent) = edited(&came.to_string().into(), "");
    assert_eq!((plan.offloads.len(), sent.len() < 60_000), (1, true), "{}", sent.len());
}

#[test]
fn old_results_are_cleared_and_long_ones_truncated_and_stored() {
    let clear = "recall.via = \"none\"\nclear_tool_results = { when = 'any', trigger = { messages = 4 }, keep = { results = 1 }, clear_tool_inputs = true }\ntruncate_tool_results = { max_bytes = 2000 }";
    check("u m:s1 u:r1*400 m:s2 u:r2*400 m u", clear, "u m:s1- u:r1! m:s2 u:r2 m u");
    check("u m:s1+c2 u:r1*400+r2*400 m:s3 u:r3*4000 m u", clear, "u m:s1-+c2- u:r1!+r2! m:s3 u:r3~ m u");
    check("u m:cf+cf u:rf*400+rf*400 u", clear, "u m:cf+cf u:rf+rf u");
    let came = body("u m:s1 u:r1*400 m:s2 u:r2*400 m u");
    let (plan, out) = edited(
        &came,
        "recall.via = \"none\"\nclear_tool_results = { when = 'any', trigger = { messages = 4 }, keep = { results = 1 } }",
    );
    assert_eq!(plan.offloads[0].payload.bytes(), "word ".repeat(80).as_bytes());
    let text = serde_json::from_slice::<Value>(&out).unwrap()["contents"][2]["parts"][0]["functionResponse"]["response"]["output"].clone();
    let expected = str::from_utf8(&came).unwrap().replacen(&"word ".repeat(80), text.as_str().unwrap(), 1);
    assert_eq!(str::from_utf8(&out).unwrap(), expected, "all but the text is the client's");
}

#[test]
fn an_object_that_is_no_text_is_cleared_and_truncated_as_its_output() {
    let settings = "recall.via = \"none\"\nclear_tool_results = { when = 'any', trigger = { messages = 4 }, keep = { results = 1 } }\ntruncate_tool_results = { max_bytes = 2000 }";
    let numbers =
        |n: usize| format!(r#"{{"rows": [{}]}}"#, (0..n).map(|n| n.to_string()).collect::<Vec<_>>().join(", "));
    let came = str::from_utf8(&body("u m:s1 u:r1 m:s2 u:r2 m u")).unwrap().to_owned();
    let parted: Vec<_> = came.split(r#"{"exit":0,"output":"word "}"#).collect();
    let came = Bytes::from([parted[0], &numbers(100), parted[1], &numbers(2000), parted[2]].concat());
    let (plan, out) = edited(&came, settings);
    let out: Value = serde_json::from_slice(&out).unwrap();
    let said = |n: usize| out["contents"][n]["parts"][0]["functionResponse"]["response"].as_object().unwrap().clone();
    assert_eq!((said(2).len(), said(4).len()), (1, 1));
    assert!(said(2)["output"].as_str().unwrap().starts_with("[Cleared: 400 bytes"), "{plan}");
    let cut = said(4)["output"].as_str().unwrap().to_owned();
    assert!(cut.starts_with("{\"rows\": [0, 1, 2") && cut.contains("left out here") && cut.len() < 3000, "{cut}");
    let stored: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes().to_vec()).collect();
    assert!(stored.contains(&numbers(100).into_bytes()) && stored.contains(&numbers(2000).into_bytes()));
}

#[test]
fn a_signed_batch_leaves_as_a_whole() {
    let one = "filter_tool_calls.max_tool_calls = 1";
    check("u m:c1 u:r1 m:c2 u:r2 m u", one, "u m:c2 u:r2 m u");
    check("u m:s1+c2 u:r1+r2 m:s3 u:r3 m u", one, "u m:s3 u:r3 m u");
    check("u m:s1 u:r1 m:s2+c3 u:r2+r3 m u", one, "u m:s2+c3 u:r2+r3 m u");
    check("u m:c1+c2 u:r1+r2 m u", one, "u m:c2 u:r2 m u");
}

/// The API takes a call only after the user or a result.
#[test]
fn the_user_is_between_two_contents_of_the_model_where_calls_were_removed() {
    check("u m:x+c1 u:r1 m:x+c2 u:r2 m:c3 u:r3 m u", "filter_tool_calls.max_tool_calls = 1", "u m u m u m:c3 u:r3 m u");
}

#[test]
fn repeated_results_are_deduplicated() {
    let settings = "recall.via = \"none\"\npolicy.edits = [\"deduplicate_tool_results\"]";
    let lines = (0..90).map(|n| format!("line {n} of what was read, in so many words\\n")).collect::<Vec<_>>().concat();
    let came = str::from_utf8(&body("u m:s1 u:r1 m:s2 u:r2")).unwrap().replace("word ", &lines);
    let (plan, out) = edited(&came.into(), settings);
    assert!(plan.report.changes.iter().any(|change| change.edit == "deduplicate"), "{plan}");
    assert_eq!(is_valid(&out), Ok(()));
}

#[test]
fn a_summary_is_a_content_of_the_user_before_the_next_step() {
    let settings = "policy.edits = [\"patch_tool_calls\", \"summarize\"]\nsummarize = { trigger = { messages = 6 }, keep = { rounds = 1 } }";
    let came = body("u m:s1 u:r1*900+x m:s2 u:r2*900 m:s3 u:r3 m:s4 u:r4");
    let (planner, mut known) = (planner(settings), HashMap::<ChainKey, SummaryState>::new());
    let out = loop {
        let plan = planner.policy.plan(dialect(), &came, &planner.anonymous(&known)).unwrap();
        let job = match plan.needs {
            Some(Need::Make(job)) if !known.contains_key(&job.key) => job,
            _ => break splice(&came, &plan.splices).concat(),
        };
        let text = job.frame.around("So far.");
        let (tokens_replaced, made_at) = (job.tokens_replaced, job.n_elements);
        let summary = Arc::new(Summary { text, tokens_replaced, made_at, transcript: None });
        known.insert(job.key, SummaryState::Summary(summary));
    };
    assert_eq!(words(&out), "u m:s3 u:r3 m:s4 u:r4");
    assert_eq!(is_valid(&out), Ok(()));
}
