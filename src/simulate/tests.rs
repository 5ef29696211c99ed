//! Small transcripts, with figures computed by hand.
//!
//! Tokens are estimated: a text is a quarter of its bytes, rounded up. A message is 3 and its role (user and tool 1,
//! assistant 3) and its text; a call is 3 and its name and its arguments; a request is 3 and its messages.

use std::fs;

use tempfile::TempDir;

use super::sent_request::{SentRequest, SharedPrefix};
use super::*;
use crate::planner::PlanSettings;
use crate::tokens::{Counter, REQUEST_OVERHEAD};

/// user 104, call 11, result 1004, call 11, result 1004, answer 7
fn session() -> String {
    let call = |id| {
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"look","arguments":"{{}}"}}}}]}}"#
        )
    };
    let result =
        |id, text: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"{}"}}"#, text.repeat(4000));
    let (user, answer) = ("u".repeat(400), r#"{"role":"assistant","content":"done"}"#);
    let (a, b) = (result("a", "r"), result("b", "s"));
    format!(
        r#"{{"messages": [ {{"role":"user","content":"{user}"}}, {}, {a}, {}, {b}, {answer} ], "model":"m"}}"#,
        call("a"),
        call("b")
    )
}

fn planner(settings: &str, window: Option<usize>) -> Planner {
    let mut settings: PlanSettings = toml::from_str(settings).unwrap();
    settings.tokens.counter = Counter::Estimate;
    let planner = Planner::new(settings);
    if let Some(window) = window {
        planner.meter.models().learn("m", window);
    }
    planner
}

fn candidate(settings: &str, window: Option<usize>) -> PolicyUnderTest {
    PolicyUnderTest {
        name: "p".to_owned(),
        planners: Routes::only(planner(settings, window)),
        judged: None,
        keep_alive: None,
    }
}

fn figures(settings: &str, window: Option<usize>, prices: Prices) -> Figures {
    let transcript = Transcript::new(session().into(), None).unwrap();
    let conditions = Conditions { prices, ..Conditions::default() };
    played(&transcript, &planner(settings, window), &conditions)
}

fn played(transcript: &Transcript, planner: &Planner, conditions: &Conditions<'_>) -> Figures {
    let measured =
        Measure { planner, conditions, placebo: None, judged: None, keep_alive: None, whole: None, counted: &[] };
    regret::measure(transcript, measured).unwrap().figures
}

fn prices(read: &str, write: &str) -> Prices {
    Prices { cache_read: read.parse().unwrap(), cache_write: write.parse().unwrap() }
}

const NONE: &str = "policy.edits = []";
const STICKY: &str = r#"
clear_tool_results = { when = 'any', trigger = { tokens = 1100 }, keep = { results = 0 }, placeholder = "gone" }
"#;

#[test]
fn a_transcript_gives_one_request_before_each_answer_and_one_at_the_end() {
    let transcript = Transcript::new(session().into(), None).unwrap();
    let requests: Vec<_> = transcript.requests().collect();
    let n_messages = requests.iter().map(|body| crate::dialect::of_body(body).parse(body).unwrap().elements.len());
    assert_eq!(n_messages.collect::<Vec<_>>(), [1, 3, 5, 6]);
    assert!(requests.iter().all(|body| body.ends_with(br#" ], "model":"m"}"#)));
    assert_eq!(requests[3], session());
}

#[test]
fn without_edits_the_prefix_never_moves() {
    // 107 + 1122 + 2137 + 2144; of 104, 1119 and 2134 that came before, whole blocks.
    let expected = Figures {
        requests: 4,
        tokens_sent: 5510,
        largest_request: 2144,
        window_unknown: 4,
        tokens_cached: 1024 + 2048,
        tokens_written: 1024 + 1024,
        cost: 2745, // 307.2 + 2048 + 390
        ..Figures::default()
    };
    assert_eq!(figures(NONE, None, Prices::default()), expected);
    let dearer = figures(NONE, Some(2137), prices("0.1", "1.25"));
    assert_eq!(dearer, Figures { cost: 3257, beyond_window: 1, window_unknown: 0, ..expected });
}

#[test]
fn a_stand_in_text_replaces_a_summary_where_no_model_is_called() {
    const SUMMARIZE: &str = r#"policy.edits = ["summarize"]
summarize = { trigger = { tokens = 2000 }, keep = { rounds = 0 } }"#;
    let transcript = Transcript::new(session().into(), None).unwrap();
    let play = |settings: &str, model| {
        let conditions = Conditions { summary_tokens: 50, model, ..Conditions::default() };
        played(&transcript, &planner(settings, None), &conditions)
    };
    let made = play(SUMMARIZE, None);
    // The third and the fourth request begin with the same summary, and what it replaces is sent once more to make it.
    assert_eq!((made.summaries, made.frontier_moves), (1, 1));
    assert!((104 + 11 + 1004..2000).contains(&made.summary_tokens), "{made:?}");
    assert_eq!(made.summary_tokens_cached, 1024);
    let none = play(NONE, None);
    assert!(made.largest_request < 1500 && made.tokens_sent < none.tokens_sent - 1000, "{made:?}");

    let failed = play(SUMMARIZE, Some(&|_| None));
    let call = Figures { summary_tokens: made.summary_tokens, summary_tokens_cached: 1024, cost: failed.cost, ..none };
    assert_eq!(failed, call);
    let dearer = failed.cost - none.cost;
    assert!(dearer.abs_diff((made.summary_tokens - 1024) as u64 + 102) <= 1, "{dearer}");
}

#[test]
fn the_front_of_a_page_has_each_policy_that_no_other_beats_in_cost_and_faults() {
    let total = |(faults, cost_with_recalls)| {
        let regret = Regret { answers: 100, faults, cost_unedited: 100, cost_with_recalls, ..Regret::default() };
        PolicyResult { policy: "p".to_owned(), window: None, outcome: Outcome { regret, ..Outcome::default() } }
    };
    // The third has the faults of the first at a higher cost, the last costs as much as the second, with more faults.
    let totals = [(4, 50), (2, 70), (4, 60), (0, 100), (3, 70)].map(total).into_iter().collect();
    let (transcripts, unreadable) = Default::default();
    let simulation =
        Simulation { verdict: None, prices: Prices::default(), stand_in: None, transcripts, totals, unreadable };
    let page = Page(&simulation).to_string();
    let (_, front) = page.split_once(r#"<polyline class="front" points=""#).unwrap();
    let points: Vec<_> = front.split_once('"').unwrap().0.split(' ').collect();
    let place = |point: &str| page.find(&format!("cx=\"{}\"", point.replace(',', "\" cy=\"")));
    let places: Vec<_> = points.iter().map(|point| place(point).unwrap()).collect();
    assert!(places.len() == 3 && places.is_sorted(), "{front}");
}

#[test]
fn clearing_a_result_moves_the_frontier() {
    // 107 + 1122 + (2137 - 999) + (2144 - 999). The unread result stays in the third request, and in the
    // fourth, which only adds an answer, as if that were a prefill.
    let expected = Figures {
        requests: 4,
        tokens_sent: 3512,
        largest_request: 1145,
        window_unknown: 4,
        tokens_cached: 1024,
        tokens_written: 1024 + 1024,
        cost: 2590, // 102.4 + 2048 + 440
        frontier_moves: 1,
        results_cleared: 1,
        bytes_offloaded: 4000,
        ..Figures::default()
    };
    assert_eq!(figures(STICKY, None, Prices::default()), expected);
}

#[test]
fn a_truncated_result_is_counted_once() {
    let figures = figures("truncate_tool_results.max_bytes = 1000", None, Prices::default());
    assert_eq!((figures.results_truncated, figures.results_cleared, figures.frontier_moves), (2, 0, 0));
    assert_eq!(figures.bytes_offloaded, 8000);
}

#[test]
fn changed_tool_definitions_share_no_prefix() {
    let gauge = planner(NONE, None).meter.for_model(None);
    let body = |tools: &str| {
        let text = "u".repeat(4000);
        format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"tools":[{tools}]}}"#)
    };
    let sent = |tools: &str| SentRequest::new(body(tools).into(), &gauge, None).unwrap();
    let tool = r#"{"type":"function","function":{"name":"look"}}"#;
    assert_eq!(sent(tool).shared_prefix(&sent("")), SharedPrefix { tokens: 0, whole: true });
    let same = sent(tool).shared_prefix(&sent(tool));
    assert_eq!(same.tokens + REQUEST_OVERHEAD, sent(tool).tokens());
}

#[test]
fn cached_tokens_are_rounded_down_to_whole_blocks() {
    let mut figures = Figures::default();
    for (tokens, shared) in [(127, 0), (128, 127), (255, 128), (300, 299)] {
        figures.add_request(Counted { tokens, shared: Some(shared) }, Some(255), false);
    }
    assert_eq!((figures.tokens_sent, figures.tokens_cached, figures.tokens_written), (810, 128 + 256, 128));
    assert_eq!(figures.beyond_window, 1);
    figures.compute_cost(prices("0", "2"));
    assert_eq!(figures.cost, 2 * 128 + (810 - 384 - 128));
}

#[test]
fn prices_are_decimals_from_0_to_1000() {
    for (text, printed) in
        [("0.1", "0.1"), ("1", "1.0"), ("1.25", "1.25"), ("0.000001", "0.000001"), ("1000", "1000.0")]
    {
        assert_eq!(text.parse::<Price>().unwrap().to_string(), printed);
    }
    for text in ["", ".", "-1", "1000.1", "nan", "inf", "99999999999999999999"] {
        assert!(text.parse::<Price>().is_err(), "{text}");
    }
}

fn simulate(choice: &TranscriptSelection) -> Simulation {
    Simulation::run(choice, &[candidate(NONE, None)], &Conditions::default())
}

fn rows(simulation: &Simulation) -> Vec<(String, usize)> {
    let row =
        |played: &TranscriptResult| (played.name.rsplit('/').next().unwrap_or_default().to_owned(), played.messages);
    simulation.transcripts.iter().map(row).collect()
}

#[test]
fn folders_are_searched_and_recordings_of_one_session_are_merged() {
    let dir = TempDir::new().unwrap();
    let transcript = Transcript::new(session().into(), None).unwrap();
    for (n, body) in transcript.requests().enumerate() {
        let folder = dir.path().join(format!("exchanges/{n}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("request.json"), &body).unwrap();
    }
    fs::write(dir.path().join("a.json"), r#"{"messages":[{"role":"user","content":"Hi."}]}"#).unwrap();
    fs::write(dir.path().join("b.json"), r#"{"message":"Hi."}"#).unwrap();
    fs::write(dir.path().join("c.json"), r#"{"messages":[]}"#).unwrap();
    fs::write(dir.path().join("d.txt"), "Hi.").unwrap();
    let paths = vec![dir.path().to_owned(), dir.path().join("a.json"), dir.path().join("nothing")];

    let simulation = simulate(&TranscriptSelection { paths: paths.clone(), ..TranscriptSelection::default() });
    assert_eq!(rows(&simulation), [("3".to_owned(), 6), ("a.json".to_owned(), 1)]);
    let unreadable: Vec<_> = simulation.unreadable.iter().map(|it| it.name.rsplit('/').next().unwrap()).collect();
    assert_eq!(unreadable, ["b.json", "c.json", "nothing"]);
    assert_eq!(simulation.totals[0].outcome.figures.requests, 5);

    let longest = simulate(&TranscriptSelection { paths, limit: Some(1), ..TranscriptSelection::default() });
    assert_eq!(rows(&longest), [("3".to_owned(), 6)]);
}

#[test]
fn each_segment_of_a_recording_has_the_windows_and_the_upstream_that_were_recorded() {
    let dir = TempDir::new().unwrap();
    let summary = "This session is being continued from a previous conversation.";
    let said = |role: &str, text: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
    let messages =
        [said("user", "Hi."), said("assistant", "Hi."), said("user", summary), said("assistant", "So be it.")];
    let body = format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","));
    fs::write(dir.path().join("request.json"), body).unwrap();
    fs::write(dir.path().join("meta.json"), r#"{"inputs":{"windows":{"m":8192},"upstream":"host"}}"#).unwrap();
    let segments = Transcript::read(dir.path(), None).unwrap().segments().unwrap();
    assert_eq!(segments.len(), 2);
    for segment in segments {
        assert_eq!((segment.windows.get("m"), segment.upstream.as_deref()), (Some(&8192), Some("host")));
    }
}

#[test]
fn the_default_model_applies_to_transcripts_without_a_model() {
    let body = r#" {"messages":[{"role":"user","content":"Hi."}]}"#;
    let model = |body: &'static str| {
        let transcript = Transcript::new(body.into(), Some("it's \"m\"")).unwrap();
        transcript.model().unwrap().to_owned()
    };
    assert_eq!(model(body), "it's \"m\"");
    assert_eq!(model(r#"{"model":"n","messages":[{"role":"user","content":"Hi."}]}"#), "n");
    assert!(Transcript::new(r#"{"model":1,"messages":[{}]}"#.into(), Some("m")).is_err());
}

#[test]
fn the_table_is_at_most_120_columns_wide() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.json"), session()).unwrap();
    let candidates = [
        PolicyUnderTest { name: "a policy with quite a long name".to_owned(), ..candidate(NONE, None) },
        PolicyUnderTest { name: "é".to_owned(), ..candidate(STICKY, Some(1000)) },
    ];
    let choice = TranscriptSelection { paths: vec![dir.path().join("a.json")], ..TranscriptSelection::default() };
    let table = Simulation::run(&choice, &candidates, &Conditions::default()).to_string();
    assert!(table.lines().filter(|line| !line.contains('/')).all(|line| line.chars().count() <= 120), "{table}");
    let row = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        row.split_whitespace().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("a policy"), "4 5,510 2,144 ? 55.7 % 2,745 0 0 0 0 0");
    assert_eq!(row("é"), "4 1,510 544 0 50.8 % 819 0 0 2 8,000 0");
}

/// A session of Claude Code with so many results of 20,000 characters, each of which is billed as 5,000 tokens.
fn claude_session(n_results: u64) -> String {
    let line = |kind: &str, n: u64, second: u64, message: String| {
        format!(
            r#"{{"type":"{kind}","uuid":"{kind}{n}","sessionId":"s","timestamp":"2026-05-01T10:00:{second:02}Z","message":{message}}}"#
        )
    };
    let mut lines = vec![line("user", 0, 0, r#"{"role":"user","content":"Go."}"#.to_owned())];
    for n in 1..=n_results {
        let (cached, written) = if n == 1 { (0, 2000) } else { (2000 + (n - 2) * 5000, 5000) };
        let usage = format!(
            r#"{{"input_tokens":3,"cache_read_input_tokens":{cached},"cache_creation_input_tokens":{written},"output_tokens":50}}"#
        );
        let call = format!(r#"{{"type":"tool_use","id":"t{n}","name":"look","input":{{}}}}"#);
        lines.push(line("assistant", n, 2 * n, format!(
            r#"{{"id":"m{n}","model":"claude-opus-4-5","role":"assistant","content":[{call}],"stop_reason":"tool_use","usage":{usage}}}"#
        )));
        let text = "r".repeat(20_000);
        lines.push(line(
            "user",
            n,
            2 * n + 1,
            format!(
                r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{n}","content":"{text}"}}]}}"#
            ),
        ));
    }
    lines.join("\n")
}

#[test]
fn counts_that_no_request_has_stop_nothing() {
    let dir = TempDir::new().unwrap();
    for (n, key) in ["input_tokens", "cache_creation_input_tokens", "output_tokens"].iter().enumerate() {
        let session = claude_session(2).replace(&format!("\"{key}\":"), &format!("\"{key}\":{},\"was\":", u64::MAX));
        fs::write(dir.path().join(format!("{n}.jsonl")), session.replace("\"id\":\"m", &format!("\"id\":\"m{n}")))
            .unwrap();
    }
    let simulation = simulate(&TranscriptSelection { paths: vec![dir.path().to_owned()], ..Default::default() });
    assert_eq!(simulation.totals[0].outcome.figures.requests, 6, "{:?}", simulation.unreadable);
}

#[test]
fn what_a_policy_saves_is_what_was_paid_less_what_it_costs() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("long.jsonl"), claude_session(20)).unwrap();
    fs::write(dir.path().join("short.jsonl"), claude_session(1).replace(r#""m1""#, r#""n1""#)).unwrap();
    fs::write(dir.path().join("copy.jsonl"), claude_session(5)).unwrap();
    let candidates = [candidate(NONE, None), candidate(STICKY, None)];
    let choice = TranscriptSelection { paths: vec![dir.path().to_owned()], ..TranscriptSelection::default() };
    let simulation = Simulation::run(&choice, &candidates, &Conditions::default());
    let verdict = simulation.verdict.as_ref().unwrap();
    // $5 a million, 6.25 for what is written, 0.5 for what is read, 25 for output; a session that is copied counts once.
    let of =
        |plain: u64, written: u64, read: u64, output: u64| plain * 5000 + written * 6250 + read * 500 + output * 25_000;
    let long = of(60, 2000 + 19 * 5000, 19 * 2000 + 5000 * (18 * 19 / 2), 1000);
    let paid = long + of(3, 2000, 0, 50);
    assert_eq!(verdict.paid, Paid { dollars: Nanodollars(paid), requests: 21, unpriced: 0 });
    assert_eq!((verdict.sessions.get(&Agent::ClaudeCode), verdict.days, verdict.faults), (Some(&2), 1, 0));
    let costs: Vec<_> = simulation.totals.iter().map(|total| total.outcome.dollars.0).collect();
    assert_eq!(costs[0], paid, "without edits");
    assert_eq!(i64::try_from(paid - costs[1]).unwrap(), verdict.saved);
    let [most] = verdict.most.as_slice() else { panic!("{verdict:?}") };
    assert!(most.name.ends_with("long.jsonl") && most.saved == verdict.saved && verdict.saved > 0, "{verdict:?}");
    // Without clearing, each request reads all before it; with it, nearly nothing.
    let reads = i64::try_from(of(0, 0, 5000 * (18 * 19 / 2), 0)).unwrap();
    assert!(verdict.saved < reads && verdict.saved > reads / 2, "{} of {reads}", verdict.saved);
}
