//! Recalls: over HTTP, as a file, from the command line.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::wire::Reply;
use crate::support::{Abridge, Scene, Setup, Upstream, Wire, binary, chat, post, request};

const CHAT: &str = "/v1/chat/completions";

/// Sends a request; the body that went upstream. The client's answer is read.
async fn upstream_got(scene: &mut Scene, request: Vec<u8>) -> Vec<u8> {
    let mut client = scene.abridge.connect().await;
    client.send(request).await;
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await.to_vec();
    call.answer("200 OK", &["connection: close"], "{}").await;
    client.reply().await;
    body
}

async fn get(client: &mut Wire, target: &str) -> Reply {
    client.send(request("GET", target, &[])).await;
    client.reply().await
}

fn text(reply: &Reply) -> &str {
    std::str::from_utf8(&reply.body).unwrap()
}

#[tokio::test]
async fn originals_can_be_recalled_whole_and_in_parts() {
    let mut scene = Scene::new().await;
    let long = long_text(1);
    let body = upstream_got(&mut scene, chat(with_results(std::slice::from_ref(&long)))).await;
    let [target] = &recalls(&body)[..] else { panic!("one handle: {body:?}") };
    let notice = format!("http://{}{target}", scene.abridge.address());
    assert!(std::str::from_utf8(&body).unwrap().contains(&notice), "the notice says where we are reached");

    let whole = get(&mut scene.client, target).await;
    assert_eq!((whole.head.status(), text(&whole)), (200, &*long));
    assert_eq!(whole.head.get("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(whole.head.get("x-content-type-options"), Some("nosniff"));
    assert_eq!(whole.head.get("x-abridge-size"), Some(&*long.len().to_string()));

    let part = get(&mut scene.client, &format!("{target}?offset=100&limit=50")).await;
    assert_eq!(part.body, &long.as_bytes()[100..150]);
    assert_eq!(part.head.get("x-abridge-range"), Some("100-150"));
    let lines = get(&mut scene.client, &format!("{target}?lines=5000-5001")).await;
    let expected: Vec<_> = long.split_inclusive('\n').skip(4999).take(2).collect();
    assert_eq!(text(&lines), expected.concat());
    assert_eq!(lines.head.get("x-abridge-lines"), Some("6000"));
    let found = get(&mut scene.client, &format!("{target}?grep=line%204711+%C3%A9")).await;
    assert_eq!(text(&found), format!("4712:{}\n", long.lines().nth(4711).unwrap()));
    assert_eq!(found.head.get("x-abridge-matches"), Some("1"));

    scene.client.send(request("HEAD", target, &[])).await;
    let head = scene.client.head().await;
    assert_eq!((head.status(), head.get("content-length")), (200, Some(&*long.len().to_string())));
    // Nothing has a length, too.
    for part in ["?limit=0", "?grep=nowhere"] {
        scene.client.send(request("HEAD", &format!("{target}{part}"), &[])).await;
        let head = scene.client.head().await;
        assert_eq!((head.status(), head.get("content-length")), (200, Some("0")), "{part}");
    }
    // Nothing came after the head: the connection is at the next answer.
    assert_eq!(get(&mut scene.client, "/abridge/healthz").await.head.status(), 200);
}

/// JavaScript cuts strings inside of an emoji.
#[tokio::test]
async fn a_text_with_half_a_surrogate_pair_comes_back_as_it_was_sent() {
    let mut scene = Scene::new().await;
    let string = serde_json::to_string(&(long_text(1) + "half")).unwrap().replace("half\"", "\\ud83d\"");
    let sent = with_results(&["text".to_owned()]).replace("\"text\"", &string);
    let body = upstream_got(&mut scene, chat(sent)).await;
    assert!(body.windows(7).any(|bytes| bytes == b"\\ud83d\"") && body.len() < 60_000, "cut, and its end is as it was");
    let [target] = &recalls(&body)[..] else { panic!("one handle: {body:?}") };
    let whole = get(&mut scene.client, target).await;
    assert_eq!((whole.head.status(), text(&whole)), (200, &*string));
    assert_eq!(whole.head.get("content-type"), Some("application/json"));
    assert_eq!(whole.head.get("x-abridge-size"), Some(&*string.len().to_string()));
    let line = get(&mut scene.client, &format!("{target}?lines=4712")).await;
    assert_eq!(text(&line), long_text(1).split_inclusive('\n').nth(4711).unwrap());
    assert_eq!(line.head.get("content-type"), Some("text/plain; charset=utf-8"));
}

#[tokio::test]
async fn an_answer_says_how_many_tokens_there_were_and_are() {
    let mut scene =
        Scene::with("clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 } }").await;
    let texts: Vec<_> = (0..4).map(|n| format!("{n} ").repeat(2000)).collect();
    let mut body = with_results(&texts);
    scene.client.send(chat(&body)).await;
    let mut call = scene.upstream.request().await;
    let got = call.bytes().await;
    call.json("{}").await;
    let reply = scene.client.reply().await;
    assert!(reply.head.get("x-abridge-edits").unwrap().starts_with("clear="), "{:?}", reply.head);
    let (before, after) = reply.head.get("x-abridge-tokens").unwrap().split_once("->").unwrap();
    let (before, after): (usize, usize) = (before.parse().unwrap(), after.parse().unwrap());
    assert!(after < before && before < body.len() && after < got.len(), "{before} -> {after}");
    for (target, text_before) in recalls(&got).iter().zip(&texts) {
        assert_eq!(text(&get(&mut scene.client, target).await), text_before);
    }

    // Where nothing is counted, nothing is said.
    body = with_results(&[long_text(1)]).replace("gpt-4o", "nobody-knows");
    let mut scene = Scene::with("policy.edits = [\"truncate_tool_results\"]").await;
    let mut call = scene.ask(chat(&body)).await;
    call.json("{}").await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.head.get("x-abridge-edits"), Some("truncate=1"));
    assert_eq!(reply.head.get("x-abridge-tokens"), None);
}

#[tokio::test]
async fn a_missing_original_is_reported_with_the_reason() {
    let mut scene = Scene::new().await;
    let never = get(&mut scene.client, "/abridge/recall/00000000000000000000000000").await;
    assert_eq!(never.head.status(), 404);
    for wrong in ["x", "..%2F..%2Fetc%2Fpasswd", "../../etc/passwd", "0000000000000000000000000u"] {
        let malformed = get(&mut scene.client, &format!("/abridge/recall/{wrong}")).await;
        assert_eq!((malformed.head.status(), text(&malformed)), (404, text(&never)), "{wrong:?}");
    }
    let query = get(&mut scene.client, "/abridge/recall/00000000000000000000000000?regex=x").await;
    assert_eq!(query.head.status(), 400);
    assert!(text(&query).contains("grep=TEXT"), "{}", text(&query));
    scene.client.send(post("/abridge/recall/00000000000000000000000000", &[], "")).await;
    let posted = scene.client.reply().await;
    assert_eq!((posted.head.status(), posted.head.get("allow")), (405, Some("GET, HEAD")));
    scene.upstream.no_more();
}

#[tokio::test]
async fn callers_do_not_share_handles() {
    let mut scene = Scene::with("recall.auth = \"handle\"").await;
    let body = with_results(&[long_text(1)]);
    let mut handles = Vec::new();
    for fields in [&["authorization: Bearer a"][..], &["authorization: Bearer b"], &["api-key: b"], &[]] {
        for _ in 0..2 {
            let got = upstream_got(&mut scene, post(CHAT, fields, &body)).await;
            handles.extend(recalls(&got));
        }
    }
    assert_eq!(handles.len(), 8);
    handles.dedup();
    assert_eq!(handles.len(), 4, "the same for one caller, another for another one");
    handles.sort();
    handles.dedup();
    assert_eq!(handles.len(), 4);
    for handle in handles {
        assert_eq!(text(&get(&mut scene.client, &handle).await), long_text(1));
    }
}

#[tokio::test]
async fn a_restart_keeps_handles() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("store.path = {:?}", folder.path().join("store.redb"));
    let mut scene = Scene::with(&line).await;
    let texts: Vec<_> = (0..3).map(long_text).collect();
    let before = upstream_got(&mut scene, chat(with_results(&texts))).await;
    let handles = recalls(&before);
    assert_eq!(handles.len(), 3);
    scene.abridge.signal("TERM");
    assert!(scene.abridge.exit().await.success());

    let mut scene = Scene::with(&line).await;
    for (handle, text_before) in handles.iter().zip(&texts) {
        assert_eq!(text(&get(&mut scene.client, handle).await), text_before);
    }
    // The same conversation is rewritten as it was, except for the port of this run.
    let after = upstream_got(&mut scene, chat(with_results(&texts))).await;
    assert_eq!(recalls(&after), handles);
}

#[tokio::test]
async fn without_a_store_nothing_is_taken_out() {
    let mut scene = Scene::with("store.enabled = false").await;
    let body = with_results(&[long_text(1)]);
    assert_eq!(upstream_got(&mut scene, chat(&body)).await, body.as_bytes());
    let none = get(&mut scene.client, "/abridge/recall/00000000000000000000000000").await;
    assert_eq!(none.head.status(), 404);
}

#[tokio::test]
async fn a_dry_run_keeps_nothing() {
    let mut scene = Scene::with("dry_run = true").await;
    let body = with_results(&[long_text(1)]);
    assert_eq!(upstream_got(&mut scene, chat(&body)).await, body.as_bytes());
    scene.abridge.signal("TERM");
    scene.abridge.exit().await;
    assert_eq!(
        Store::of(&scene.abridge).run(&["stats"]).1.lines().next().unwrap().split_whitespace().last(),
        Some("0")
    );
}

#[tokio::test]
async fn an_agent_on_the_same_disk_gets_files() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("exported");
    let mut scene = Scene::with(&format!("recall.via = \"file\"\nrecall.export_dir = {dir:?}")).await;
    let body = upstream_got(&mut scene, chat(with_results(&[long_text(1)]))).await;
    let body = std::str::from_utf8(&body).unwrap();
    let (_, name) = body.split_once(dir.to_str().unwrap()).expect("the notice names the file");
    let (name, _) = name.split_once(".txt").unwrap();
    assert_eq!(std::fs::read_to_string(format!("{}{name}.txt", dir.display())).unwrap(), long_text(1));
}

#[tokio::test]
async fn exported_files_are_swept_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let old = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        path
    };
    let (ours, foreign) = (old("00000000000000000000000000.txt"), old("notes.txt"));
    let lines = format!("log.level = \"debug\"\nrecall.export_dir = {:?}", folder.path());
    let scene = Scene::with(&lines).await;
    scene.abridge.says("exported files were swept", 0).await;
    assert!(!ours.exists() && foreign.exists());
}

#[tokio::test]
async fn a_recall_counts_as_a_request_in_flight() {
    let mut scene = Scene::with("server.max_in_flight = 1").await;
    let body = upstream_got(&mut scene, chat(with_results(&[long_text(1)]))).await;
    let [target] = &recalls(&body)[..] else { panic!("one handle: {body:?}") };
    let mut held = scene.ask(request("GET", "/v1/models", &[])).await;
    let mut other = scene.abridge.connect().await;
    let refused = get(&mut other, target).await;
    assert_eq!((refused.head.status(), refused.head.get("retry-after")), (503, Some("1")));
    assert!(text(&refused).contains("server.max_in_flight"), "{}", text(&refused));

    held.answer("200 OK", &["connection: close"], "{}").await;
    scene.client.reply().await;
    let whole = get(&mut other, target).await;
    assert_eq!((whole.head.status(), text(&whole)), (200, &*long_text(1)));
}

// === one file, one process ===

#[tokio::test]
async fn a_second_process_on_the_store_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("store.path = {:?}", folder.path().join("store.redb"));
    let scene = Scene::with(&line).await;
    let failed = Setup::before(&scene.upstream).with(&line).fail().await;
    assert_eq!(failed.status.code(), Some(69));
    assert_eq!(failed.stderr.lines().count(), 1, "{}", failed.stderr);
    assert!(
        failed.stderr.contains("in use by another abridge") && failed.stderr.contains("store.path"),
        "{}",
        failed.stderr
    );

    let (code, _, stderr) = Store::of(&scene.abridge).run(&["ls"]);
    assert_eq!((code, stderr.lines().count()), (69, 1), "{stderr}");
    assert!(stderr.contains("/abridge/recall/"), "{stderr}");
}

#[tokio::test]
async fn where_the_store_is_required_a_file_that_is_not_one_is_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "notes ".repeat(1000)).unwrap();
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with(format!("store.path = {path:?}")).with("store.required = true");
    let failed = setup.fail().await;
    assert_eq!(failed.status.code(), Some(69));
    assert!(failed.stderr.contains("is not a store of abridge"), "{}", failed.stderr);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "notes ".repeat(1000));
}

#[tokio::test]
async fn the_command_line_reads_what_a_proxy_kept() {
    let mut scene = Scene::new().await;
    let body = upstream_got(&mut scene, chat(with_results(&[long_text(1), long_text(2)]))).await;
    let handles: Vec<_> =
        recalls(&body).iter().filter_map(|target| Some(target.rsplit_once('/')?.1.to_owned())).collect();
    let store = Store::of(&scene.abridge);
    scene.abridge.signal("TERM");
    scene.abridge.exit().await;

    let (code, listed, _) = store.run(&["ls"]);
    assert_eq!((code, listed.lines().count()), (0, 3), "{listed}");
    assert!(handles.iter().all(|handle| listed.contains(handle)), "{listed}");
    assert_eq!(store.run(&["ls", "--most", "1"]).1.lines().count(), 2);
    assert!(store.run(&["ls", "--json"]).1.contains(&format!("\"key\": \"{}\"", handles[0])));
    assert_eq!(store.run(&["get", &handles[1]]), (0, long_text(2), String::new()));
    for wrong in ["00000000000000000000000000", "../x"] {
        let (code, out, stderr) = store.run(&["get", wrong]);
        assert_eq!((code, &*out, stderr.lines().count()), (1, "", 1));
    }
    assert!(store.run(&["stats", "--json"]).1.contains("\"payloads\": 2"));
    assert_eq!(store.run(&["sweep"]).0, 0);
    assert_eq!(store.run(&["compact"]).0, 0);
    assert_eq!(store.run(&["get", &handles[1]]).1, long_text(2));

    std::fs::remove_file(store.file()).unwrap();
    let (code, _, stderr) = store.run(&["ls"]);
    assert_eq!((code, stderr.lines().count()), (66, 1), "{stderr}");
}

/// The commands for the store of a process, with its settings.
struct Store {
    config: std::path::PathBuf,
}

impl Store {
    fn of(abridge: &Abridge) -> Self {
        Self { config: abridge.config().to_owned() }
    }

    /// Where a process of the tests has its store if it is not told otherwise.
    fn file(&self) -> std::path::PathBuf {
        self.config.with_file_name("abridge").join("store.redb")
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(binary());
        command.arg("--config").arg(&self.config).arg("store").args(args);
        command.env("XDG_STATE_HOME", self.config.parent().unwrap());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

/// Codex tells its model so in its default sandbox, in which `curl http://127.0.0.1` cannot connect.
#[tokio::test]
async fn where_a_shell_reaches_no_network_a_tool_is_added_if_it_can_be() {
    const OFFLINE: &str = "`sandbox_mode` is `workspace-write`. Network access is restricted.";
    let chat = with_results(&[long_text(1)]);
    let said = |role: &str| {
        chat.replace("\"messages\":[", &format!("\"messages\":[{{\"role\":\"{role}\",\"content\":\"{OFFLINE}\"}},"))
    };
    let responses = |fields: &str| {
        let input = format!(
            r#"{{"role":"developer","content":"{OFFLINE}"}},{{"role":"user","content":"go"}},{{"type":"function_call","call_id":"c","name":"exec_command","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"c","output":{}}}"#,
            serde_json::to_string(&long_text(1)).unwrap()
        );
        format!(
            r#"{{"model":"gpt-5","input":[{input}],{fields}"tools":[{{"type":"function","name":"exec_command"}}]}}"#
        )
    };
    let (http, tool) = ("Read it with GET http", "Read it with abridge_recall (handle=");
    for (settings, path, body, way) in [
        ("", "/v1/chat/completions", chat.clone(), http),
        ("", "/v1/chat/completions", said("developer"), tool),
        ("", "/v1/chat/completions", said("user"), http),
        ("recall.via = \"offered\"", "/v1/chat/completions", said("system"), http),
        ("", "/v1/responses", responses("\"store\":false,"), tool),
        ("", "/v1/responses", responses("\"previous_response_id\":\"resp_0\","), http),
    ] {
        let mut scene = Scene::with(settings).await;
        scene.client.send(post(path, &["content-type: application/json"], &body)).await;
        let mut call = scene.upstream.request().await;
        let sent = String::from_utf8(call.bytes().await.to_vec()).unwrap();
        assert_eq!(
            (sent.contains(way), sent.contains("\"name\":\"abridge_recall\"")),
            (true, way == tool),
            "{body:.300}"
        );
    }
}
