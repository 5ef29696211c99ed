//! Inspection: status, the changes of a request and its messages, payloads; over HTTP and from the command line.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::metrics::after;
use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::wire::Reply;
use crate::support::{
    Abridge, ClosedPort, OPERATOR, OPERATOR_TOKEN, Scene, Setup, Upstream, binary, chat, post, request, within,
};

const CHAT: &str = "/v1/chat/completions";

/// Names that must be nowhere in what is shown.
const KEYS: [&str; 4] = ["sk-canary-authorization", "canary-api-key", "canary-query", "canary-configured"];

#[derive(Debug, Deserialize)]
struct Requests {
    requests: Vec<Entry>,
    latest: u64,
}

#[derive(Debug, Deserialize)]
struct Entry {
    seq: u64,
    id: String,
    outcome: String,
    inspectable: bool,
}

#[derive(Debug, Deserialize)]
struct Document {
    request: Entry,
    changes: Vec<Changed>,
    content: Option<Content>,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Changed {
    message: usize,
    action: String,
    label: String,
    handle: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Content {
    messages: Vec<Message>,
}

#[derive(Debug, Deserialize)]
struct Message {
    index: usize,
    role: String,
    name: Option<String>,
    state: String,
    before: Option<String>,
    after: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    payloads: Vec<Payload>,
    next: Option<String>,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Payload {
    handle: String,
    bytes: usize,
}

/// The output of a command.
struct CommandOutput {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl CommandOutput {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }
}

/// Runs a command against a proxy.
fn run(abridge: &Abridge, args: &[&str]) -> CommandOutput {
    run_at(&format!("http://{}", abridge.address()), args)
}

fn run_at(url: &str, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(binary());
    let output = command
        .args(args)
        .args(["--at", url])
        .current_dir("/")
        .env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN)
        .output()
        .unwrap();
    CommandOutput {
        code: output.status.code().unwrap(),
        out: output.stdout,
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns what a path of abridge itself answers.
async fn get(abridge: &Abridge, target: &str) -> Reply {
    let mut client = abridge.connect().await;
    client.send(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n{OPERATOR}\r\nconnection: close\r\n\r\n")).await;
    client.reply().await
}

fn read<'a, T: Deserialize<'a>>(reply: &'a Reply) -> T {
    let text = std::str::from_utf8(&reply.body).unwrap();
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Sends a request through, and reads its answer to the end. Its id, if it was edited.
async fn pass(abridge: &Abridge, upstream: &mut Upstream, request: impl AsRef<[u8]>) -> Option<String> {
    let mut client = abridge.connect().await;
    client.send(request).await;
    let mut call = upstream.request().await;
    call.bytes().await;
    let usage = r#"{"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":60}}}"#;
    call.answer("200 OK", &["connection: close", "content-type: application/json"], usage).await;
    client.reply().await.head.get("x-abridge-request-id").map(str::to_owned)
}

/// The requests, once there are so many: they are written down when their answers have ended.
async fn requests(abridge: &Abridge, n: usize) -> Requests {
    within("the requests to be written down", async {
        loop {
            let found: Requests = read(&get(abridge, "/abridge/requests").await);
            if found.requests.len() >= n {
                return found;
            }
        }
    })
    .await
}

/// One request, once its messages are kept.
async fn kept(abridge: &Abridge, id: &str) -> Document {
    within("the messages to be kept", async {
        loop {
            let reply = get(abridge, &format!("/abridge/requests/{id}")).await;
            if reply.head.status() == 200 {
                let document: Document = read(&reply);
                if document.content.is_some() {
                    return document;
                }
            }
        }
    })
    .await
}

/// A call that no one answered, a result that is too long, and results that are too old.
fn eventful() -> (String, Vec<String>) {
    let mut texts: Vec<_> = (0..4).map(|n| format!("{n} ").repeat(2000)).collect();
    texts.push(long_text(1));
    let dangling = r#",{"role":"assistant","tool_calls":[{"id":"gone","type":"function","function":{"name":"bash","arguments":"{}"}}]},{"role":"user","content":"and then?"}],"tools""#;
    (with_results(&texts).replacen("],\"tools\"", dangling, 1), texts)
}

const CLEARING: &str = "clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 2 } }";

#[tokio::test]
async fn a_status_counts_what_was_sent() {
    let mut scene = Scene::new().await;
    let Scene { abridge, upstream, .. } = &mut scene;
    for (n, body) in [DANGLING, PLAIN, PLAIN, "no JSON"].into_iter().enumerate() {
        pass(abridge, upstream, chat(body)).await;
        requests(abridge, n + 1).await;
    }
    pass(abridge, upstream, post("/v1/embeddings", &[], "{}")).await;
    let mut client = abridge.connect().await;
    client.send(request("OPTIONS", "*", &[])).await;
    assert_eq!(client.reply().await.head.status(), 400);
    // The one that was refused is none of them.
    after(abridge, 5).await;
    let found = requests(abridge, 4).await;
    let outcomes: Vec<_> = found.requests.iter().map(|entry| &*entry.outcome).collect();
    assert_eq!(outcomes, ["edited", "unedited", "unedited", "not_understood"]);
    let numbers: Vec<_> = found.requests.iter().map(|entry| entry.seq).collect();
    assert_eq!((numbers, found.latest), (vec![1, 2, 3, 4], 4));
    let later: Requests = read(&get(abridge, "/abridge/requests?after=2&limit=1").await);
    assert_eq!(later.requests.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [3], "the next");
    let newest: Requests = read(&get(abridge, "/abridge/requests?limit=1").await);
    assert_eq!(newest.requests.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [4]);

    let ran = run(abridge, &["status"]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let row = |name: &str| ran.text().lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(row("requests"), "6: 1 edited, 2 unedited, 1 not understood, 1 passed, 1 refused");
    assert_eq!(row("billed"), "400 input, 240 of them read from cache (60 %), 28 output");
    assert_eq!(row("fail-open"), "not_understood 1");
    assert!(row("added").ends_with("of the last 4 conversations"), "{}", ran.text());
    assert!(row("store").contains("store.redb: 0 payloads"), "{}", ran.text());
    assert_eq!(row("inspect"), "off");

    let json = run(abridge, &["status", "--json"]);
    let reply = get(abridge, "/abridge/status").await;
    assert_eq!(
        (reply.head.get("content-type"), reply.head.get("cache-control")),
        (Some("application/json"), Some("no-store"))
    );
    for part in
        ["\"requests\":{\"total\":6,\"edited\":1,", "\"billed\":{\"input\":400,\"cached\":240,", "\"not_understood\":1"]
    {
        assert!(json.text().contains(part), "{part}: {}", json.text());
    }
    upstream.no_more();
}

#[tokio::test]
async fn a_diff_shows_each_message_with_its_texts_and_no_key() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with("inspect.keep = 3").with(CLEARING);
    let abridge = setup.with("upstream.headers = { x-gateway-key = \"canary-configured\" }").start().await;
    let none = run(&abridge, &["diff", "last"]);
    assert!(none.err.contains("no conversation has come since"), "{}", none.err);
    let (body, texts) = eventful();
    let fields = ["authorization: Bearer sk-canary-authorization", "api-key: canary-api-key"];
    let request = post(&format!("{CHAT}?key=canary-query"), &fields, &body);
    let id = pass(&abridge, &mut upstream, request).await.unwrap();
    let Document { request, changes, content, .. } = kept(&abridge, &id).await;
    assert!(request.inspectable && request.id == id && request.outcome == "edited");
    let messages = content.unwrap().messages;

    let of_state = |state: &str| messages.iter().filter(|message| message.state == state).collect::<Vec<_>>();
    let cleared = of_state("cleared");
    assert!(cleared.iter().map(|message| message.before.as_ref().unwrap()).eq(&texts[..4]));
    assert!(cleared.iter().all(|message| message.name.as_deref() == Some("bash") && message.role == "tool"));
    assert!(cleared.iter().all(|message| message.after.as_ref().unwrap().contains("/abridge/recall/")));
    let [cut] = of_state("cut")[..] else { panic!("one is cut") };
    assert!(cut.index == 10 && cut.before.as_ref() == Some(&texts[4]));
    let after = cut.after.as_ref().unwrap();
    assert!(after.len() < texts[4].len() && after.starts_with(texts[4].get(..1000).unwrap()), "{after}");
    let [inserted] = of_state("inserted")[..] else { panic!("one is put in") };
    let missing = "Tool call bash (gone) has no result: it was interrupted before it finished.";
    assert_eq!((inserted.before.as_ref(), inserted.after.as_deref()), (None, Some(missing)));
    assert_eq!(of_state("same").len() + 6, messages.len());

    let ran = run(&abridge, &["diff", &id]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let diff = ran.text();
    assert!(diff.starts_with(&format!("{id}, edited, gpt-4o, ")), "{diff}");
    assert!(diff.contains(&format!("\n+ {missing}\n")), "{diff}");
    assert!(diff.contains("\n@@ message 2, tool bash: cleared, 4000 -> "), "{diff}");
    assert!(
        diff.contains("\n- 0 0 0 ") && diff.contains("\n@@ message 10, tool bash: cut, ") && !diff.contains('\u{1b}'),
        "{diff}"
    );
    assert!(diff.len() < body.len() / 5, "long texts are shortened: {}", diff.len());
    for name in ["last", id.get(4..8).unwrap(), id.get(..12).unwrap()] {
        assert_eq!(run(&abridge, &["diff", name]).text(), diff, "{name}");
    }
    let full = run(&abridge, &["diff", &id, "--full"]);
    let cut_out = texts[4].lines().nth(3000).unwrap();
    assert!(full.text().contains(&format!("\n- {cut_out}\n")) && !diff.contains(cut_out));

    // Everything that was taken out returns byte for byte.
    let clear = |message: usize| changes.iter().find(|change| change.message == message && change.handle.is_some());
    for (message, text) in [(2, &texts[0]), (10, &texts[4])] {
        let change = clear(message).unwrap();
        assert!(["clear", "truncate"].contains(&&*change.action) && change.label == change.action);
        let handle = change.handle.as_deref().unwrap();
        assert!(message == 10 || diff.contains(&format!("abridge show {handle}")), "{diff}");
        let shown = run(&abridge, &["show", handle]);
        assert!(shown.code == 0 && shown.out == text.as_bytes());
    }

    let mut all = vec![diff.to_owned(), full.text().to_owned(), run(&abridge, &["status"]).text().to_owned()];
    for target in ["/abridge/status", "/abridge/requests", &format!("/abridge/requests/{id}"), "/abridge/payloads"] {
        all.push(String::from_utf8(get(&abridge, target).await.body.to_vec()).unwrap());
    }
    for key in KEYS {
        assert!(!all.iter().any(|shown| shown.contains(key)), "{key} is shown");
    }
}

#[tokio::test]
async fn without_keep_there_are_changes_and_no_content() {
    let mut upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let abridge = Setup::before(&upstream).with(format!("store.path = {path:?}")).start().await;
    let id = pass(&abridge, &mut upstream, chat(DANGLING)).await.unwrap();
    requests(&abridge, 1).await;
    let document: Document = read(&get(&abridge, &format!("/abridge/requests/{id}")).await);
    assert!(document.content.is_none() && !document.request.inspectable);
    assert!(document.reason.unwrap().contains("[inspect] keep"));
    let [change] = &document.changes[..] else { panic!("one change") };
    assert_eq!((change.message, &*change.action, &*change.label), (2, "insert", "patch"));

    let ran = run(&abridge, &["diff", &id]);
    assert_eq!(ran.code, 1);
    assert!(ran.text().contains("patch: insert message 2, call call_b of tool list"), "{}", ran.text());
    assert!(ran.err.contains("[inspect] keep = 20 keeps the last 20 edited requests"), "{}", ran.err);

    assert_eq!(pass(&abridge, &mut upstream, chat(PLAIN)).await, None);
    let unedited = requests(&abridge, 2).await.requests.pop().unwrap().id;
    let ran = run(&abridge, &["diff", &unedited]);
    assert!(ran.err.contains("the request was not edited"), "{}", ran.err);
    abridge.signal("TERM");
    abridge.exit().await;
    assert!(!holds(&path, b"and then?") && !holds(&path, id.as_bytes()));
}

fn holds(file: &Path, text: &[u8]) -> bool {
    memchr::memmem::find(&std::fs::read(file).unwrap(), text).is_some()
}

#[tokio::test]
async fn the_last_requests_are_kept_until_keep_is_lowered() {
    let mut upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let lines = format!("store.path = {path:?}\ninspect.keep = 2");
    let abridge = Setup::before(&upstream).with(&lines).start().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let body = DANGLING.replace("and then?", &format!("question {n}"));
        ids.push(pass(&abridge, &mut upstream, chat(body)).await.unwrap());
        kept(&abridge, &ids[n]).await;
    }
    let content = async |abridge: &Abridge, id: &str| {
        let reply = get(abridge, &format!("/abridge/requests/{id}")).await;
        let shown = String::from_utf8(reply.body.to_vec()).unwrap();
        (reply.head.status(), shown.contains("\"question "))
    };
    assert_eq!(content(&abridge, &ids[0]).await, (200, false), "it is known, but not kept");
    let gone = run(&abridge, &["diff", &ids[0]]);
    assert!(gone.err.contains("no longer among the last 2 edited requests"), "{}", gone.err);
    assert_eq!(content(&abridge, &ids[1]).await, (200, true));
    abridge.signal("TERM");
    abridge.exit().await;

    let abridge = Setup::before(&upstream).with(&lines).start().await;
    assert_eq!(content(&abridge, &ids[0]).await, (404, false));
    for id in &ids[1..] {
        assert_eq!(content(&abridge, id).await, (200, true), "after a restart");
    }
    let shown = run(&abridge, &["diff", &ids[2]]);
    assert!(shown.text().contains("4 messages went on as they came"), "{}", shown.text());

    // Who does not want them any more has them no more.
    let from = abridge.stderr().len();
    abridge.reload_with("");
    abridge.says("settings reloaded", from).await;
    assert_eq!(content(&abridge, &ids[2]).await, (200, true), "the same settings");
    let config = std::fs::read_to_string(abridge.config()).unwrap().replace("inspect.keep = 2", "inspect.keep = 0");
    std::fs::write(abridge.config(), config).unwrap();
    abridge.signal("HUP");
    within("what is kept to go", async { while content(&abridge, &ids[2]).await != (404, false) {} }).await;
    assert_eq!(run(&abridge, &["diff", &ids[2]]).code, 1);
    abridge.signal("TERM");
    abridge.exit().await;
}

#[tokio::test]
async fn payloads_are_listed_found_by_handle_and_searched_with_keep_alone() {
    let mut upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let texts: Vec<_> = (1..=3).map(long_text).collect();
    let list = async |abridge: &Abridge, query: &str| -> Listed {
        read(&get(abridge, &format!("/abridge/payloads{query}")).await)
    };
    for keep in [0, 5] {
        let lines = format!("store.path = {path:?}\ninspect.keep = {keep}");
        let abridge = Setup::before(&upstream).with(lines).start().await;
        pass(&abridge, &mut upstream, chat(with_results(&texts))).await.unwrap();
        let all = list(&abridge, "").await;
        assert_eq!((all.payloads.len(), all.next), (3, None));
        assert!(all.payloads.iter().all(|payload| payload.bytes == texts[0].len()));
        let first = list(&abridge, "?limit=2").await;
        let rest = list(&abridge, &format!("?limit=2&after={}", first.next.unwrap())).await;
        let paged: Vec<_> = first.payloads.iter().chain(&rest.payloads).map(|payload| &*payload.handle).collect();
        assert_eq!(paged, all.payloads.iter().map(|payload| &*payload.handle).collect::<Vec<_>>());
        let handle = &*all.payloads[1].handle;
        let found = list(&abridge, &format!("?search={}", handle.get(..12).unwrap())).await;
        assert_eq!(found.payloads.iter().map(|payload| &*payload.handle).collect::<Vec<_>>(), [handle]);

        let inside = list(&abridge, "?search=2:%20line%204711").await;
        if keep == 0 {
            assert!(inside.payloads.is_empty() && inside.reason.unwrap().contains("[inspect] keep"));
        } else {
            let [payload] = &inside.payloads[..] else { panic!("{inside:?}") };
            assert_eq!(run(&abridge, &["show", &payload.handle]).out, texts[1].as_bytes());
        }
        for wrong in ["?limit=x", "?after=x", "?else=1"] {
            assert_eq!(get(&abridge, &format!("/abridge/payloads{wrong}")).await.head.status(), 400, "{wrong}");
        }
        abridge.signal("TERM");
        abridge.exit().await;
    }
}

#[tokio::test]
async fn a_long_original_is_shown_whole() {
    let mut scene = Scene::with("policy.edits = [\"truncate_tool_results\"]").await;
    // The part that one answer has ends in the middle of a character.
    let text = format!("x{}", "\u{e9}".repeat(5 << 20));
    let mut client = scene.abridge.connect().await;
    client.send(chat(with_results(std::slice::from_ref(&text)))).await;
    let mut call = scene.upstream.request().await;
    let handle = recalls(&call.bytes().await)[0].rsplit_once('/').unwrap().1.to_owned();
    call.answer("200 OK", &["connection: close"], "{}").await;
    client.reply().await;
    let shown = run(&scene.abridge, &["show", &handle]);
    assert!(shown.code == 0 && shown.out == text.as_bytes(), "{} bytes: {}", shown.out.len(), shown.err);
}

#[tokio::test]
async fn commands_without_a_result_print_the_reason() {
    let free = ClosedPort::new();
    let url = &format!("http://{}", free.address());
    for args in [&["status"][..], &["show", "00000000000000000000000000"], &["diff", "req_0123456789abcdef"]] {
        let ran = run_at(url, args);
        assert_eq!((ran.code, ran.text()), (69, ""), "{args:?}");
        assert!(ran.err.starts_with(&format!("abridge: nothing listens on {url}; start a proxy")), "{}", ran.err);
    }
    let scene = Scene::new().await;
    for (args, why) in [
        (["show", "no handle"], "is not a handle: a handle has 26 digits"),
        (["show", "00000000000000000000000000"], "answers 404: no payload has this handle"),
        (["diff", "../../x"], "is not a request id"),
        (["diff", "req_0123456789abcdef"], "no request with this id"),
    ] {
        let ran = run(&scene.abridge, &args);
        assert_eq!((ran.code, ran.text(), ran.err.lines().count()), (1, "", 1), "{args:?}");
        assert!(ran.err.contains(why), "{}", ran.err);
    }
}
