//! Two processes on one engine behave as one: the same bytes, each other's texts, one summary.

use std::time::{Duration, Instant};

use abridge_proxy::store::secret::Secrets;
use bytes::Bytes;
use tokio::time::sleep;

use crate::engine::{Engine, on_each_engine};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::openmetrics::Scrape;
use crate::it::support::summarizer::{INSTRUCTION, Play, Summarizer, talk};
use crate::it::support::wire::Reply;
use crate::it::support::{Abridge, Setup, Upstream, chat, post, request, within};

const CLEAR: &str =
    "clear_tool_results = { trigger = { tokens = 5000 }, clear_at_least = 0, when = \"any\", keep = { results = 1 } }";

/// Truncates what [`text`] makes.
pub(crate) const SHORT: &str = "truncate_tool_results.max_bytes = 2000";

/// A text that is truncated with [`SHORT`]; different for each `seed`. It costs little, so that a busy machine is quick with a
/// request, too, unless the request waits for something.
pub(crate) fn text(seed: usize) -> String {
    format!("{seed}: a line of what a tool has printed\n").repeat(200)
}

/// Sends a chat on its own connection.
pub(crate) async fn ask(abridge: &Abridge, body: impl AsRef<[u8]>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(chat(body)).await;
    client.reply().await
}

/// Reads a path.
pub(crate) async fn get(abridge: &Abridge, target: &str) -> Reply {
    let mut client = abridge.connect().await;
    client.send(request("GET", target, &["accept: application/openmetrics-text"])).await;
    client.reply().await
}

fn summarising(engine: &Engine, upstream: &Summarizer) -> Setup {
    engine
        .replica_to(upstream.url().to_owned())
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 900 }")
        .with("tokens.counter = \"estimate\"")
}

async fn what_one_process_stores_another_reads_at_once_and_sends_the_same(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let replica = || engine.replica_to(upstream.url().to_owned()).start();
    let (one, other) = tokio::join!(replica(), replica());
    for n in 0..20 {
        let (first, second) = if n % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let texts = [long_text(2 * n), long_text(2 * n + 1)];
        assert_eq!(ask(first, with_results(&texts)).await.head.status(), 200);
        let sent = upstream.chats().pop().unwrap().body;
        let handles = recalls(&sent);
        assert_eq!(handles.len(), 2);
        for (handle, text) in handles.iter().zip(&texts) {
            let recalled = get(second, handle).await;
            assert!(recalled.head.status() == 200 && recalled.body == text.as_bytes(), "{n}");
        }
        assert_eq!(ask(second, with_results(&texts)).await.head.status(), 200);
        assert_eq!(upstream.chats().pop().unwrap().body, sent, "{n}: the same request, other bytes");
    }
    let store = engine.open(Secrets::default()).await.unwrap();
    assert_eq!(store.stats().await.unwrap().payloads, 40);
}

async fn what_another_process_has_stored_is_asked_for_and_not_sent_again(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let replica =
        || engine.replica_to(upstream.url().to_owned()).with("truncate_tool_results.max_bytes = 2000").start();
    let (one, other) = tokio::join!(replica(), replica());
    let texts = [1, 2, 3].map(|n| long_text(n).chars().take(8000).collect::<String>());
    let chats = [1, 2, 3].map(|n| with_results(&texts[..n]));
    let behind = r#",{"role":"assistant","content":"Done."},{"role":"user","content":"Go on."}],"tools""#;
    let read = chats[0].replace(r#"],"tools""#, behind);
    // Which process is sent what, and how often it has written to the engine by then.
    for (n, (abridge, body, n_commits)) in
        [(&one, &chats[0], 1), (&other, &read, 0), (&other, &chats[1], 1), (&one, &chats[2], 2), (&other, &chats[2], 2)]
            .into_iter()
            .enumerate()
    {
        assert_eq!(ask(abridge, body).await.head.status(), 200);
        let handles = recalls(&upstream.chats().pop().unwrap().body);
        assert_eq!(handles.len(), body.matches("tool_call_id").count());
        let metrics = get(abridge, "/abridge/metrics").await;
        let scrape = Scrape::read(std::str::from_utf8(&metrics.body).unwrap());
        assert_eq!(scrape.get("abridge_store_commits_total"), n_commits, "{n}");
        for (handle, text) in handles.iter().zip(&texts) {
            assert!(get(abridge, handle).await.body == text.as_bytes(), "{n}");
        }
    }
}

async fn a_summary_is_made_once_for_all_processes_and_the_beginning_stays(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let start = || summarising(&engine, &upstream).start();
    let (one, other) = tokio::join!(start(), start());
    for seed in ["a", "b"] {
        let n_summaries = upstream.summaries().len();
        assert_eq!(ask(&one, talk(seed, 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
        let sent = upstream.chats().pop().unwrap().text().to_owned();
        assert_eq!(ask(&other, talk(seed, 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
        assert_eq!(upstream.chats().pop().unwrap().text(), sent);
        // A process that comes later, too.
        let late = start().await;
        assert_eq!(ask(&late, talk(seed, 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
        assert_eq!(upstream.chats().pop().unwrap().text(), sent);
        assert_eq!(upstream.summaries().len(), n_summaries + 1);
    }
    // Both want the next one at the same time.
    let (first, second) = tokio::join!(ask(&one, talk("c", 3)), ask(&other, talk("c", 3)));
    for reply in [first, second] {
        assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
    }
    let [.., first, second] = &upstream.chats()[..] else { panic!("both should have been sent") };
    assert_eq!(first.body, second.body);
    assert_eq!(upstream.summaries().len(), 3, "one text, one call");
}

async fn a_process_that_dies_while_it_makes_a_summary_is_replaced_when_its_lease_ends(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([Play::good().held()]).await;
    let (one, other) = (summarising(&engine, &upstream).start().await, summarising(&engine, &upstream).start().await);
    let mut client = one.connect().await;
    client.send(chat(talk("a", 3))).await;
    upstream.asked_for(1).await;
    one.signal("KILL");
    let began = Instant::now();
    assert_eq!(ask(&other, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    let waited = began.elapsed();
    assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!(upstream.summaries().len(), 2);
}

async fn a_window_that_one_process_learns_is_known_to_all(engine: Engine) {
    engine.init("").await;
    let texts: Vec<_> = (0..12).map(|n| format!("{n} ").repeat(2000)).collect();
    let body = with_results(&texts).replace("gpt-4o", "house-model");
    let lines = "clear_tool_results = { when = 'any', keep = { results = 1 } }";
    let mut asked = Upstream::start().await;
    // This one asks.
    let one = Setup::before(&asked).with(lines).with(format!("store.engine = {:?}", engine.name()));
    let one = one.with("store.url_env = \"STORE_URL\"").environment("STORE_URL", engine.url());
    let one = one.with("recall.public_url = \"http://abridge.test\"").start().await;
    let mut client = one.connect().await;
    client.send(post("/v1/chat/completions", &[], &body)).await;
    let (mut first, mut second) = (asked.request().await, asked.request().await);
    if first.head.start.starts_with("GET") {
        std::mem::swap(&mut first, &mut second);
    }
    let listing = r#"{"object":"list","data":[{"id":"house-model","max_model_len":16000}]}"#;
    second.answer("200 OK", &["connection: close"], listing).await;

    // This one asks no one.
    let upstream = Summarizer::playing([]).await;
    let start = || engine.replica_to(upstream.url().to_owned()).with(lines).start();
    let other = start().await;
    within("the window to be known", async {
        loop {
            ask(&other, &body).await;
            if upstream.chats().pop().unwrap().body.len() < body.len() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let late = start().await;
    ask(&late, &body).await;
    assert!(upstream.chats().pop().unwrap().body.len() < body.len(), "it is known before the first request");
}

/// Returns what the upstream gets. It bills 1.55 times as many tokens as a quarter of the bytes.
async fn sent(upstream: &mut Upstream, abridge: &Abridge, body: &str) -> Bytes {
    let answering = async {
        let mut call = upstream.request().await;
        let sent = call.bytes().await;
        let usage = format!(r#"{{"prompt_tokens":{},"completion_tokens":1}}"#, sent.len() * 155 / 400);
        let fields = ["content-type: application/json", "connection: close"];
        call.answer("200 OK", &fields, format!(r#"{{"choices":[],"usage":{usage}}}"#)).await;
        sent
    };
    tokio::join!(ask(abridge, body), answering).1
}

async fn a_conversation_has_one_token_factor_in_all_processes(engine: Engine) {
    engine.init("").await;
    let mut upstream = Upstream::start().await;
    let start = || {
        let replica = engine.replica_to(upstream.url()).with("tokens.counter = \"estimate\"");
        replica.with(CLEAR).start()
    };
    let (one, other) = tokio::join!(start(), start());
    // 4,000 tokens as they are counted, and 6,200 as billed.
    let results = [0, 1, 2, 3].map(|n| format!("{n} ").repeat(2000));
    let conversation = |seed: &str| with_results(&results).replace("\"go\"", &format!("{seed:?}"));
    let [taught, first, second] = ["taught", "first", "second"].map(conversation);
    // The other process begins the first conversation, and the one that has learnt begins the second.
    assert_eq!(sent(&mut upstream, &one, &taught).await, taught);
    let learnt = b"abridge_token_factor{";
    within("the bill", async {
        while memchr::memmem::find(&get(&one, "/abridge/metrics").await.body, learnt).is_none() {}
    })
    .await;
    assert_eq!(sent(&mut upstream, &other, &first).await, first);
    let cleared = sent(&mut upstream, &one, &second).await;
    assert!(cleared.len() < second.len());
    assert_eq!(sent(&mut upstream, &one, &first).await, first);
    assert_eq!(sent(&mut upstream, &other, &second).await, cleared);
}

on_each_engine!(
    what_one_process_stores_another_reads_at_once_and_sends_the_same,
    what_another_process_has_stored_is_asked_for_and_not_sent_again,
    a_summary_is_made_once_for_all_processes_and_the_beginning_stays,
    a_process_that_dies_while_it_makes_a_summary_is_replaced_when_its_lease_ends,
    a_window_that_one_process_learns_is_known_to_all,
    a_conversation_has_one_token_factor_in_all_processes,
);

#[tokio::test]
async fn a_fingerprint_tells_settings_apart_that_edits_depend_on() {
    let upstream = Upstream::start().await;
    let fingerprint = async |line: &str| {
        let setup = Setup::before(&upstream).with("recall.public_url = \"http://abridge.test\"");
        let abridge = setup.with(line).start().await;
        let metrics = String::from_utf8(get(&abridge, "/abridge/metrics").await.body.to_vec()).unwrap();
        metrics.lines().find(|line| line.starts_with("abridge_settings_info{")).unwrap().to_owned()
    };
    let plain = fingerprint("").await;
    assert_eq!(fingerprint("store.timeout = \"8s\"").await, plain);
    assert_ne!(fingerprint(CLEAR).await, plain);
}
