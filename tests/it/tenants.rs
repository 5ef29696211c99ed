//! Two callers of one abridge, with the same conversations: neither sees anything of the other.

use std::net::SocketAddr;
use std::process::Command;

use crate::events::EventListener;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::summarizer::{INSTRUCTION, Play, Summarizer, talk};
use crate::support::wire::Reply;
use crate::support::{Abridge, OPERATOR as OPERATOR_OF_FILE, Setup, Upstream, Wire, binary, converse, post, request};

const CHAT: &str = "/v1/chat/completions";
const REQUIRED: &str = "recall.auth = \"credential\"";
const UNKNOWN: &str = "/abridge/recall/00000000000000000000000000";

const ANN: &str = "authorization: Bearer sk-ann";
const BOB: &str = "api-key: sk-bob";

/// Shows nothing.
const NONE: &str = "x-none: 1";

const TOKEN: &str = "a-token-of-operators";
const OPERATOR: &str = "authorization: Bearer a-token-of-operators";

/// Asks for abridge's own path, and shows this.
async fn get(at: SocketAddr, target: &str, shown: &str) -> Reply {
    let mut client = Wire::connect(at).await;
    client.send(request("GET", target, &[shown])).await;
    client.reply().await
}

fn status(reply: &Reply) -> (u16, &str) {
    (reply.head.status(), std::str::from_utf8(&reply.body).unwrap())
}

/// An address that others reach, as this machine reaches it.
fn from_outside(abridge: &Abridge) -> SocketAddr {
    ([127, 0, 0, 1], abridge.address().port()).into()
}

// === payloads ===

#[tokio::test]
async fn a_handle_of_another_caller_is_answered_as_unknown() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(REQUIRED).start().await;
    let (at, text) = (abridge.address(), long_text(1));
    let body = with_results(std::slice::from_ref(&text));
    let mut handles = Vec::new();
    for shown in [ANN, BOB, NONE] {
        handles.extend(recalls(&converse(at, &mut upstream, shown, &body).await));
    }
    let [ann, bob, nobody] = &handles[..] else { panic!("one handle each: {handles:?}") };
    // The last digit of another caller's, and half of it with half of one's own.
    let near = format!("{}{}", bob.split_at(bob.len() - 1).0, if bob.ends_with('0') { '1' } else { '0' });
    let (head, tail) = (bob.split_at(bob.len() - 9).0, ann.split_at(ann.len() - 9).1);
    let (mixed, path) = (format!("{head}{tail}"), "/abridge/recall/../../etc/passwd");
    let all = [ann, bob, nobody, &near, &mixed, UNKNOWN, "/abridge/recall/x", path];

    for query in ["", "?lines=1-2", "?offset=10&limit=5", "?grep=line", "?grep=nowhere"] {
        for (shown, own) in [(ANN, Some(ann)), (BOB, Some(bob)), ("authorization: Bearer sk-cid", None)] {
            let unknown = get(at, &format!("{UNKNOWN}{query}"), shown).await;
            assert_eq!(status(&unknown), (404, "no payload has this handle\n"));
            for handle in all {
                let target = format!("{handle}{query}");
                let reply = get(at, &target, shown).await;
                let mut client = abridge.connect().await;
                client.send(request("HEAD", &target, &[shown])).await;
                let head = client.head().await;
                // Only that there is nothing at all is not said by a head alone.
                assert!(reply.body.is_empty() || head.raw == reply.head.raw, "{shown} {target}: {head:?}");
                if own.is_some_and(|own| own == handle) {
                    assert_eq!(reply.head.status(), 200, "{shown} {target}");
                    assert_eq!(reply.head.get("x-abridge-size"), Some(&*text.len().to_string()));
                    assert!(!query.is_empty() || reply.body == text.as_bytes());
                } else {
                    assert_eq!((&reply.head.raw, &reply.body), (&unknown.head.raw, &unknown.body), "{shown} {target}");
                }
            }
        }
        // Who shows nothing is told what is missing, whatever the handle; and showing nothing is not a credential.
        let none = get(at, &format!("{UNKNOWN}{query}"), NONE).await;
        assert_eq!((none.head.status(), none.head.get("www-authenticate")), (401, Some("Bearer")));
        assert!(status(&none).1.starts_with("a handle alone is not enough here"));
        for (handle, shown) in all.into_iter().flat_map(|handle| [(handle, NONE), (handle, "authorization:")]) {
            let reply = get(at, &format!("{handle}{query}"), shown).await;
            assert_eq!((&reply.head.raw, &reply.body), (&none.head.raw, &none.body), "{shown} {handle}");
        }
    }
    // A query that is none is one to everybody.
    for handle in all {
        assert_eq!(get(at, &format!("{handle}?x=1"), ANN).await.head.status(), 400);
    }
}

#[tokio::test]
async fn whatever_is_taken_out_is_its_caller_s_own() {
    let mut upstream = Upstream::start().await;
    let clearing = "clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 }, clear_tool_inputs = true }";
    let abridge = Setup::before(&upstream).with(REQUIRED).with(clearing).start().await;
    let at = abridge.address();
    // Escapes, so that what is written is not what is recalled; and a text that is hashed on its own thread.
    let mut texts: Vec<_> = (0..4).map(|n| format!("{n} \"\u{e9}\"\n").repeat(2000)).collect();
    texts.extend([long_text(1), "\u{1f980}\t".repeat(300_000)]);
    let arguments = format!("{{\\\"command\\\": \\\"{}\\\"}}", "echo; ".repeat(500));
    let body = with_results(&texts).replacen("\"arguments\":\"{}\"", &format!("\"arguments\":\"{arguments}\""), 1);
    let [ann, bob] = [
        recalls(&converse(at, &mut upstream, ANN, &body).await),
        recalls(&converse(at, &mut upstream, BOB, &body).await),
    ];
    assert!(ann.len() >= texts.len() && ann.len() == bob.len(), "{ann:?} {bob:?}");
    let mut n_whole = 0;
    for (own, other) in ann.iter().zip(&bob) {
        assert_ne!(own, other);
        let [by_ann, by_bob] = [get(at, own, ANN).await, get(at, other, BOB).await];
        assert_eq!((by_ann.head.status(), &by_ann.body), (200, &by_bob.body));
        n_whole += usize::from(texts.iter().any(|text| by_ann.body == text.as_bytes()));
        assert_eq!(get(at, own, BOB).await.head.status(), 404);
        assert_eq!(get(at, other, ANN).await.head.status(), 404);
    }
    assert_eq!(n_whole, texts.len());
}

#[tokio::test]
async fn one_caller_reads_by_the_handle_alone_until_a_reload_asks_for_a_credential() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let at = abridge.address();
    let handles = recalls(&converse(at, &mut upstream, ANN, &with_results(&[long_text(1)])).await);
    let asked =
        async || [get(at, &handles[0], ANN).await, get(at, &handles[0], BOB).await, get(at, &handles[0], NONE).await];
    assert_eq!(asked().await.map(|reply| reply.head.status()), [200, 200, 200]);
    let from = abridge.stderr().len();
    abridge.reload_with(REQUIRED);
    abridge.says("settings reloaded", from).await;
    assert_eq!(asked().await.map(|reply| reply.head.status()), [200, 404, 401]);
}

// === operators ===

#[tokio::test]
async fn operators_can_recall_originals_of_every_caller() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with(REQUIRED).with("admin.token_env = \"OPERATORS\"");
    let abridge = setup.environment("OPERATORS", TOKEN).start().await;
    let (at, text) = (abridge.address(), long_text(1));
    let handles = recalls(&converse(at, &mut upstream, ANN, &with_results(std::slice::from_ref(&text))).await);
    assert_eq!(status(&get(at, &handles[0], OPERATOR).await), (200, &*text));
    assert_eq!(get(at, &handles[0], "authorization: Bearer a-token-of-operator").await.head.status(), 404);

    let show = |token: Option<&str>| {
        let mut command = Command::new(binary());
        command.args(["show", handles[0].rsplit_once('/').unwrap().1, "--at", &format!("http://{at}")]);
        command.current_dir("/").env("XDG_STATE_HOME", "/nowhere").env_remove("ABRIDGE_ADMIN_TOKEN");
        token.map(|token| command.env("ABRIDGE_ADMIN_TOKEN", token));
        command.output().unwrap()
    };
    let shown = show(Some(TOKEN));
    assert!(shown.status.success() && shown.stdout == text.as_bytes(), "{}", String::from_utf8_lossy(&shown.stderr));
    let refused = show(None);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout.len(), said.lines().count()), (Some(1), 0, 1), "{said}");
    assert!(said.contains("401") && said.contains("the operators' token"), "{said}");
}

#[tokio::test]
async fn a_client_s_key_opens_nothing_that_is_for_operators() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).listen(&["0.0.0.0:0"]).with("admin.listen = \"127.0.0.1:0\"");
    let abridge = setup.with(REQUIRED).with("inspect.keep = 5").start().await;
    let at = from_outside(&abridge);
    let line = abridge.says("abridge: operators at ", 0).await;
    let operators: SocketAddr =
        line.split_once("http://").unwrap().1.split_once("/abridge/").unwrap().0.parse().unwrap();
    let mut client = Wire::connect(at).await;
    let text = format!("CANARY-OF-ANN {}", long_text(1));
    client.send(post(CHAT, &[ANN], with_results(&[text]))).await;
    let mut call = upstream.request().await;
    let handle = recalls(&call.bytes().await).remove(0);
    call.answer("200 OK", &["connection: close"], "{}").await;
    let id = client.reply().await.head.get("x-abridge-request-id").unwrap().to_owned();

    // Operators find it there, so it would be there to be seen.
    let found = get(operators, "/abridge/payloads?search=CANARY-OF-ANN", OPERATOR_OF_FILE).await;
    assert!(status(&found).1.contains(handle.rsplit_once('/').unwrap().1), "{}", status(&found).1);
    assert_eq!(get(operators, &handle, OPERATOR_OF_FILE).await.head.status(), 200);
    for target in [
        "/abridge/",
        "/abridge/status",
        "/abridge/requests",
        &format!("/abridge/requests/{id}"),
        "/abridge/payloads",
        "/abridge/payloads?search=CANARY-OF-ANN",
        "/abridge/metrics",
    ] {
        for shown in [ANN, BOB] {
            let reply = get(at, target, shown).await;
            let (status, said) = status(&reply);
            assert_eq!((status, said.lines().count()), (403, 1), "{target}: {said}");
            assert!(!said.contains("CANARY") && !said.contains(&id), "{target}: {said}");
        }
    }
}

// === summaries and events ===

#[tokio::test]
async fn the_same_conversation_has_a_summary_for_each_caller() {
    let plays = ["THAT-OF-ANN", "THAT-OF-BOB"].map(|text| Play::Stream(format!("<summary>{text}</summary>")));
    let upstream = Summarizer::playing(plays).await;
    let setup = Setup::to(upstream.url()).with(REQUIRED).with(format!("summarize.instruction = {INSTRUCTION:?}"));
    let setup = setup.with("tokens.counter = \"estimate\"").with("tokens.ask_upstream = false");
    let setup = setup.with("summarize.trigger = { tokens = 900 }").with("events.content = true");
    let abridge = setup.start().await;
    let at = abridge.address();
    let mut listener = [EventListener::with(&abridge, &[ANN]).await, EventListener::with(&abridge, &[BOB]).await];
    let mut transcripts = Vec::new();
    // The second time no one is asked any more, and each gets its own again.
    for round in 1..=2 {
        for (n, (shown, own, other)) in
            [(ANN, "THAT-OF-ANN", "THAT-OF-BOB"), (BOB, "THAT-OF-BOB", "THAT-OF-ANN")].into_iter().enumerate()
        {
            let mut client = abridge.connect().await;
            client.send(post(CHAT, &[shown], talk("a", 3))).await;
            assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("summary=1"));
            let sent = upstream.chats().pop().unwrap();
            assert!(sent.text().contains(own) && !sent.text().contains(other), "{}", sent.text());
            assert_eq!(upstream.summaries().len(), if round == 1 { n + 1 } else { 2 });
            let word = |word: &&str| word.len() == 26 && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let handle = sent.text().split(|c: char| !c.is_ascii_alphanumeric()).find(word).unwrap();
            transcripts.push((shown, format!("/abridge/recall/{handle}")));
        }
    }
    // Each call was made in the name of who asked.
    for (asked, (name, value)) in
        upstream.summaries().iter().zip([("authorization", "Bearer sk-ann"), ("api-key", "sk-bob")])
    {
        assert_eq!((asked.head.get(name), asked.head.names().len()), (Some(value), asked.head.fields.len()));
    }
    assert!(upstream.summaries()[0].head.get("api-key").is_none());
    assert!(upstream.summaries()[1].head.get("authorization").is_none());
    assert_eq!((&transcripts[0], &transcripts[1]), (&transcripts[2], &transcripts[3]));
    assert_ne!(transcripts[0].1, transcripts[1].1);
    for (own, handle) in &transcripts[..2] {
        for shown in [ANN, BOB] {
            let expected = if shown == *own { 200 } else { 404 };
            assert_eq!(get(at, handle, shown).await.head.status(), expected, "{shown} {handle}");
        }
    }
    // Everything that was told to each until the end has the one's words and none of the other's.
    abridge.signal("TERM");
    for (listener, (own, other)) in
        listener.iter_mut().zip([("THAT-OF-ANN", "THAT-OF-BOB"), ("THAT-OF-BOB", "THAT-OF-ANN")])
    {
        let mut told = String::new();
        while let Some(event) = listener.next().await {
            told.push_str(&event.json);
        }
        assert!(told.contains(own) && !told.contains(other), "{told}");
        assert_eq!(told.matches("\"type\":\"summary.after\"").count(), 1, "{told}");
        assert_eq!(told.matches("\"type\":\"edit.after\"").count(), 2, "{told}");
    }
}

#[tokio::test]
async fn a_second_caller_ends_reading_by_the_handle_alone() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let (at, body) = (abridge.address(), with_results(&[long_text(1)]));
    let ann = recalls(&converse(at, &mut upstream, ANN, &body).await);
    let forwarded = "x-forwarded-for: 10.0.0.1";
    assert_eq!(get(at, &ann[0], NONE).await.head.status(), 200);
    // Clients ask for models without a key, or with another one.
    for shown in [NONE, BOB] {
        let mut client = Wire::connect(at).await;
        client.send(request("GET", "/v1/models", &[shown])).await;
        upstream.request().await.answer("200 OK", &["connection: close"], "{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
        assert_eq!(get(at, &ann[0], NONE).await.head.status(), 200, "that is no conversation");
    }
    assert_eq!(get(at, &ann[0], forwarded).await.head.status(), 401, "it may come from elsewhere");
    let bob = recalls(&converse(at, &mut upstream, BOB, &body).await);
    for (handle, shown, expected) in
        [(&ann, NONE, 401), (&bob, NONE, 401), (&ann, BOB, 404), (&ann, ANN, 200), (&bob, BOB, 200)]
    {
        assert_eq!(get(at, &handle[0], shown).await.head.status(), expected, "{shown}");
    }
    assert_eq!(get(at, &ann[0], OPERATOR_OF_FILE).await.head.status(), 200);
    let from = abridge.stderr().len();
    abridge.reload_with("recall.auth = \"handle\"");
    abridge.says("settings reloaded", from).await;
    assert_eq!(get(at, &ann[0], NONE).await.head.status(), 200);
}

#[tokio::test]
async fn a_token_that_its_client_renews_stays_one_caller() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let (at, body) = (abridge.address(), with_results(&[long_text(1)]));
    let [first, second] = ["authorization: Bearer eyJhbGciOiJI.1", "authorization: Bearer eyJhbGciOiJI.2"];
    let handles = recalls(&converse(at, &mut upstream, first, &body).await);
    converse(at, &mut upstream, second, &body).await;
    assert_eq!(get(at, &handles[0], NONE).await.head.status(), 200);
    converse(at, &mut upstream, first, &body).await;
    assert_eq!(get(at, &handles[0], NONE).await.head.status(), 401, "the first one is still in use");
}

#[tokio::test]
async fn what_is_sent_stays_the_same_when_a_client_renews_its_token() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let (at, body) = (abridge.address(), with_results(&[long_text(1)]));
    let tokens =
        ["sk-ant-oat01-a", "sk-ant-oat01-b", "sk-ant-oat01-c"].map(|token| format!("authorization: Bearer {token}"));
    let mut sent = Vec::new();
    for token in &tokens {
        sent.push(recalls(&converse(at, &mut upstream, token, &body).await));
    }
    assert!(sent.iter().all(|handles| *handles == sent[0]), "{sent:?}");
    // Through a proxy, and beside another caller, each token is a caller.
    let forwarded = format!("{}\r\nx-forwarded-for: 10.0.0.1", tokens[2]);
    assert_ne!(recalls(&converse(at, &mut upstream, &forwarded, &body).await), sent[0]);
    converse(at, &mut upstream, &tokens[0], &body).await;
    let own = recalls(&converse(at, &mut upstream, &tokens[0], &body).await);
    assert!(own != sent[0] && own != recalls(&converse(at, &mut upstream, &tokens[1], &body).await));
}

#[tokio::test]
async fn on_an_address_that_others_reach_a_handle_needs_its_credential() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).listen(&["0.0.0.0:0"]).start().await;
    let at = from_outside(&abridge);
    let ann = recalls(&converse(at, &mut upstream, ANN, &with_results(&[long_text(1)])).await);
    assert_eq!(get(at, &ann[0], NONE).await.head.status(), 401);
    assert_eq!(get(at, &ann[0], ANN).await.head.status(), 200);
    abridge.says("read with the credential of the conversation", 0).await;
}

#[tokio::test]
async fn an_empty_credential_is_none() {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    // All who show nothing are one caller, whose events no one from elsewhere may hear.
    for empty in ["authorization:", "authorization:  ", "api-key:", "x-api-key:"] {
        let mut client = abridge.connect().await;
        client.send(request("GET", "/abridge/events", &["x-forwarded-for: 10.0.0.1", empty])).await;
        assert_eq!(client.head().await.status(), 401, "{empty:?}");
    }
}

#[tokio::test]
async fn the_key_of_anthropic_s_clients_is_a_credential() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(REQUIRED).start().await;
    let (at, body) = (abridge.address(), with_results(&[long_text(1)]));
    let (key, other) = ("x-api-key: sk-ant-1", "x-api-key: sk-ant-2");
    let of_key = recalls(&converse(at, &mut upstream, key, &body).await);
    let of_other = recalls(&converse(at, &mut upstream, other, &body).await);
    // What Claude Code sends with a token and a key: the key counts.
    let both = "authorization: Bearer sk-3\r\nanthropic-version: 2023-06-01\r\nx-api-key: sk-ant-1";
    let of_both = recalls(&converse(at, &mut upstream, both, &body).await);
    assert_eq!(of_key, of_both);
    assert_ne!(of_key, of_other);
    for (shown, expected) in [(key, 200), (both, 200), (other, 404), ("authorization: Bearer sk-3", 404), (NONE, 401)] {
        assert_eq!(get(at, &of_key[0], shown).await.head.status(), expected, "{shown}");
    }
    // Elsewhere it may be a gateway's, which many callers share.
    let gateway = "authorization: Bearer sk-3\r\nx-api-key: sk-ant-1";
    assert_ne!(recalls(&converse(at, &mut upstream, gateway, &body).await), of_key);
}

#[tokio::test]
async fn a_key_in_the_query_is_a_credential_as_gemini_s_own_clients_send_it() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(REQUIRED).start().await;
    let body = with_results(&[long_text(1)]);
    let mut handles = Vec::new();
    for key in ["AIza-1", "AIza-2", "AIza-1"] {
        let (mut client, target) = (abridge.connect().await, format!("{CHAT}?alt=sse&key={key}"));
        client.send(post(&target, &["x-none: 1"], &body)).await;
        let mut call = upstream.request().await;
        assert_eq!((call.head.target(), call.head.get("x-abridge-client")), (&*target, None));
        handles.extend(recalls(&call.bytes().await));
        call.answer("200 OK", &["connection: close"], b"{}").await;
        client.reply().await;
    }
    assert_eq!(handles[0], handles[2]);
    for (shown, expected) in [("x-goog-api-key: AIza-1", 200), ("x-goog-api-key: AIza-2", 404), (NONE, 401)] {
        assert_eq!(get(abridge.address(), &handles[0], shown).await.head.status(), expected, "{shown}");
    }
}
