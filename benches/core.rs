//! What reading, planning and splicing cost, in microseconds per megabyte, beside a `memcpy` of the same body in the
//! same run.
//!
//! `cargo bench --bench core`; with `-- --once` each operation runs once and nothing is measured; with `-- --count`
//! those over 400 KB run twice, for `scripts/bench-guard.py`.
#![expect(clippy::expect_used, reason = "what is benched is made here")]
#![expect(clippy::print_stdout, reason = "a table is what this is for")]

use std::{
    collections::HashMap,
    fmt::Write as _,
    hint::black_box,
    os::unix::process::parent_id,
    sync::Arc,
    time::{Duration, Instant},
};

use abridge_proxy::{
    dialect::{self, Dialect, strings},
    engine::edit_body,
    payload::ChainKey,
    plan::Need,
    planner::{PlanContext, Planner, SummaryTiming},
    replay::planner_from_toml,
    span::splice,
    string_index::{StringIndex, StringIndexer},
    summary::{NoSummaries, Summary, SummaryState},
    tokens::{self, Meter},
};
use bytes::Bytes;

const SIZES: [(&str, usize); 5] =
    [("10 KB", 10_000), ("200 KB", 200_000), ("1 MB", 1_000_000), ("2 MB", 2_000_000), ("8 MB", 8_000_000)];

/// The size of the bodies whose operations are counted: a long request, as most of an agent's are.
const COUNTED: usize = 400_000;

/// What tools return, in turn: Rust, and JSON with logs. As JSON strings they have a backslash each 15 bytes, about as many as
/// recorded sessions.
const RESULTS: [&str; 2] = [include_str!("source.txt"), include_str!("cache/logs.json")];

/// Results as JSON strings, without the quote that opens them.
fn results() -> Vec<String> {
    let quoted = RESULTS.map(|text| serde_json::to_string(text).expect("a string"));
    quoted.map(|text| text.trim_start_matches('"').to_owned()).into()
}

/// A session of a coding agent: rounds of a call and one of [`RESULTS`], no two of them the same.
fn session(bytes: usize, messages_key: &str, dangling: usize) -> Bytes {
    let results = results();
    let mut body = format!(
        r#"{{"model":"gpt-4o","stream":true,"temperature":0.5,"{messages_key}":[{{"role":"system","content":"You are an agent."}},{{"role":"user","content":"Go on."}}"#
    );
    for (round, result) in results.iter().cycle().enumerate() {
        if round > 0 && body.len() + result.len() + 400 >= bytes {
            break;
        }
        write!(
            body,
            r#",{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_{round:024}","type":"function","function":{{"name":"read_file","arguments":"{{\"path\": \"src/lib.rs\", \"line\": {round}}}"}}}}]}},{{"role":"tool","tool_call_id":"call_{round:024}","content":"{round}: {result}}}"#
        )
        .expect("a String takes it");
    }
    for _ in 0..dangling {
        body.push_str(r#",{"role":"assistant","tool_calls":[{"id":"call_lost","function":{"name":"bash","arguments":"{}"}}]},{"role":"user","content":"Again."}"#);
    }
    body.push_str("],\"tools\":[]}");
    body.into()
}

/// The same session as the other dialects write it: the name of the dialect, and the body.
fn sessions_elsewhere(bytes: usize) -> [(&'static str, Bytes); 2] {
    let results = results();
    let fill = |head: &str, round: fn(usize, &str) -> String, tail: &str| {
        let mut body = head.to_owned();
        for (n, result) in results.iter().cycle().enumerate() {
            if n > 0 && body.len() + result.len() + 400 >= bytes {
                break;
            }
            body.push_str(&round(n, result));
        }
        Bytes::from(body + tail)
    };
    let responses = fill(
        r#"{"model":"gpt-5","stream":true,"store":false,"instructions":"You are an agent.","input":[{"role":"user","content":"Go on."}"#,
        |n, result| {
            format!(
                r#",{{"type":"function_call","call_id":"call_{n:024}","name":"read_file","arguments":"{{\"path\": \"src/lib.rs\", \"line\": {n}}}"}},{{"type":"function_call_output","call_id":"call_{n:024}","output":"{n}: {result}}}"#
            )
        },
        "],\"tools\":[]}",
    );
    let messages = fill(
        r#"{"model":"claude-opus-4-5","stream":true,"max_tokens":32000,"system":"You are an agent.","messages":[{"role":"user","content":"Go on."}"#,
        |n, result| {
            format!(
                r#",{{"role":"assistant","content":[{{"type":"tool_use","id":"toolu_{n:024}","name":"read_file","input":{{"path":"src/lib.rs","line":{n}}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"toolu_{n:024}","content":"{n}: {result}}}]}}"#
            )
        },
        "],\"tools\":[]}",
    );
    [("responses", responses), ("messages", messages)]
}

/// One thing that is measured, over one body.
struct Operation<'a> {
    name: String,
    body: &'a Bytes,
    run: Box<dyn FnMut() + Send + 'a>,
}

impl<'a> Operation<'a> {
    fn new<T>(name: impl Into<String>, body: &'a Bytes, mut work: impl FnMut() -> T + Send + 'a) -> Self {
        let run = Box::new(move || drop(black_box(work())));
        Self { name: name.into(), body, run }
    }
}

/// The median of many runs, or of a few long ones, each of at least 200 µs.
fn measure(run: &mut dyn FnMut()) -> Duration {
    let once = {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    let inner = (Duration::from_micros(200).as_nanos() / once.as_nanos().max(1)).clamp(1, 10_000);
    let runs = (Duration::from_secs(1).as_nanos() / once.as_nanos().max(1)).clamp(5, 41);
    let mut runs: Vec<Duration> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..inner {
                run();
            }
            start.elapsed() / u32::try_from(inner).unwrap_or(u32::MAX)
        })
        .collect();
    runs.sort_unstable();
    runs.get(runs.len() / 2).copied().unwrap_or_default()
}

/// The messages of a request, byte for byte.
fn messages<'a>(dialect: &dyn Dialect, body: &'a Bytes) -> Vec<&'a [u8]> {
    let conversation = dialect.parse(body).expect("a request");
    conversation.elements.iter().map(|message| message.span.of(body)).collect()
}

/// Counts all messages, as what has counted none of them before.
fn count_cold(settings: &tokens::Settings, messages: &[&[u8]]) -> usize {
    count(&Meter::new(settings, &[]), messages)
}

fn count(meter: &Meter, messages: &[&[u8]]) -> usize {
    let gauge = meter.for_model(Some("gpt-4o"));
    messages.iter().map(|message| dialect::default().element_tokens(&gauge, message)).sum()
}

fn row(size: &str, what: &str, body: &Bytes, copy: Duration, time: Duration) {
    let micros = time.as_secs_f64() * 1e6;
    let per_mb = micros / (f64::from(u32::try_from(body.len()).unwrap_or(u32::MAX)) / 1e6);
    let ratio = time.as_secs_f64() / copy.as_secs_f64();
    println!("{size:>7}  {what:<34} {micros:>10.1} µs {per_mb:>9.1} µs/MB {ratio:>7.1} × memcpy");
}

/// What remembers a summary of all of a body but its end.
fn summarised(planner: &Planner, dialect: &dyn Dialect, body: &Bytes) -> HashMap<ChainKey, SummaryState> {
    let context = PlanContext { summarize: SummaryTiming::Now, ..planner.anonymous(&NoSummaries) };
    let plan = planner.policy.plan(dialect, body, &context).expect("a request");
    let Some(Need::Make(job)) = plan.needs else { unreachable!("{plan}") };
    let text = job.frame.around(&"What was said before, in other words. ".repeat(200));
    let transcript = job.transcript.as_ref().map(|transcript| transcript.key);
    let summary = Summary { text, tokens_replaced: job.tokens_replaced, made_at: job.n_elements, transcript };
    [(job.key, SummaryState::Summary(Arc::new(summary)))].into()
}

/// The defaults, where results can be read back over HTTP.
const REDUCING: &str = "recall = { via = \"http\", public_url = \"http://127.0.0.1:8787\" }
clear_tool_results = { trigger = [{ tokens = 100000 }, { fraction = 0.5 }], when = \"any\", keep_reads = 0 }";

/// What the operations of all sizes share.
struct Planners {
    patching: Planner,
    reducing: Planner,
    summarizing: Planner,
    tokens: tokens::Settings,
}

/// The bodies of one size.
struct Bodies {
    clean: Bytes,
    escaped: Bytes,
    broken: Bytes,
    elsewhere: [(&'static str, Bytes); 2],
}

impl Bodies {
    fn new(bytes: usize) -> Self {
        Self {
            clean: session(bytes, "messages", 0),
            escaped: session(bytes, "mess\\u0061ges", 0),
            broken: session(bytes, "messages", 2),
            elsewhere: sessions_elsewhere(bytes),
        }
    }
}

/// The index of a body whose strings are hashed, which comes in chunks of 64 KiB.
fn index(body: &Bytes) -> StringIndex {
    let mut indexer = StringIndexer::new(true);
    body.chunks(64 << 10).for_each(|chunk| indexer.push(chunk));
    indexer.finish()
}

fn operations<'a>(planners: &'a Planners, bodies: &'a Bodies) -> Vec<Operation<'a>> {
    let dialect = dialect::default();
    let Planners { patching, reducing, summarizing, tokens } = planners;
    let Bodies { clean, escaped, broken, elsewhere } = bodies;
    let plan = patching.plan(dialect, broken).expect("a request");
    let strings = index(clean);
    assert_eq!(plan.report.changes.len(), 2);
    assert!(patching.plan(dialect, clean).expect("a request").is_empty());

    let mut operations = vec![
        Operation::new("memcpy", clean, || clean.to_vec()),
        Operation::new("index strings", clean, move || index(clean)),
        Operation::new("parse", clean, move || dialect.parse(clean)),
        Operation::new("parse, strings indexed", clean, move || dialect.parse_indexed(clean, &strings).is_ok()),
        Operation::new("parse, escaped key", escaped, move || dialect.parse(escaped)),
        Operation::new("plan, nothing to edit", clean, move || patching.plan(dialect, clean)),
    ];
    for (name, body) in elsewhere {
        let dialect = dialect::of_body(body);
        assert_eq!(dialect.name(), *name);
        assert!(patching.plan(dialect, body).expect("a request").is_empty());
        operations.push(Operation::new(format!("parse, {name}"), body, move || dialect.parse(body)));
        operations.push(Operation::new(format!("plan, {name}"), body, move || patching.plan(dialect, body)));
    }
    operations.extend([
        Operation::new("verify", broken, || strings::verify(broken)),
        Operation::new("plan, two missing results", broken, move || patching.plan(dialect, broken)),
        Operation::new("splice", broken, move || splice(broken, &plan.splices)),
        Operation::new("edit_body, two missing results", broken, move || edit_body(patching, dialect, broken.clone())),
    ]);

    for (suffix, body) in [("", clean), (", responses", &elsewhere[0].1), (", messages", &elsewhere[1].1)] {
        let dialect = dialect::of_body(body);
        let reduce = move |meter: &Meter| {
            let context = PlanContext { meter, ..reducing.anonymous(&NoSummaries) };
            reducing.policy.plan(dialect, body, &context).expect("a request")
        };
        let warm = Meter::new(tokens, &[]);
        let n = reduce(&warm).report.changes.len();
        operations.extend([
            Operation::new(format!("plan, {n} cleared, all seen before{suffix}"), body, move || reduce(&warm)),
            Operation::new(format!("plan, {n} cleared, nothing seen{suffix}"), body, move || {
                reduce(&Meter::new(tokens, &[]))
            }),
        ]);
    }
    if clean.len() > 100_000 {
        let memory = summarised(summarizing, dialect, clean);
        operations.push(Operation::new("plan, a summary found", clean, move || {
            let plan = summarizing.policy.plan(dialect, clean, &summarizing.anonymous(&memory)).expect("a request");
            assert_eq!(plan.report.counts(), [("summary", 1)]);
            plan
        }));
    }

    let (meter, messages) = (Meter::new(tokens, &[]), messages(dialect, clean));
    assert!((clean.len() / 8..clean.len() / 2).contains(&count(&meter, &messages)));
    let seen = messages.clone();
    operations.extend([
        Operation::new("count, nothing seen before", clean, move || count_cold(tokens, &messages)),
        Operation::new("count, all seen before", clean, move || count(&meter, &seen)),
    ]);
    operations
}

fn main() {
    let planners = Planners {
        patching: planner_from_toml("policy.edits = [\"patch_tool_calls\"]").expect("a policy"),
        reducing: planner_from_toml(REDUCING).expect("a policy"),
        summarizing: planner_from_toml("policy.edits = [\"patch_tool_calls\", \"summarize\"]").expect("a policy"),
        tokens: tokens::Settings::default(),
    };
    if has_argument("--count") {
        let bodies = Bodies::new(COUNTED);
        return count_instructions(&mut operations(&planners, &bodies));
    }
    for (size, bytes) in SIZES {
        let bodies = Bodies::new(bytes);
        let mut copy = Duration::ZERO;
        for mut operation in operations(&planners, &bodies) {
            if has_argument("--once") {
                (operation.run)();
                continue;
            }
            let time = measure(&mut operation.run);
            if operation.name == "memcpy" {
                copy = time;
            }
            row(size, &operation.name, operation.body, copy, time);
        }
    }
}

/// Runs each operation twice, and counts the second run; the first one fills caches. callgrind writes what it has counted at
/// each call of `getppid`, whose name it knows in a stripped binary too.
fn count_instructions(operations: &mut [Operation<'_>]) {
    for operation in operations {
        (operation.run)();
        black_box(parent_id());
        (operation.run)();
        black_box(parent_id());
        println!("{}", operation.name);
    }
}

fn has_argument(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}
