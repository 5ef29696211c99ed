//! `GET /abridge/events`: what happens, told to who may know it.

use serde::Deserialize;

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::{Abridge, End, OPERATOR, Scene, Setup, Upstream, Wire, chat, post, request, within};

const CHAT: &str = "/v1/chat/completions";
const PATH: &str = "/abridge/events";

/// One client that listens.
pub(crate) struct EventListener(Wire);

/// An event on the wire.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) json: String,
}

/// What events of edited requests say.
#[derive(Debug, Deserialize)]
pub(crate) struct EventBody {
    pub(crate) id: String,
    pub(crate) r#type: String,
    request_id: String,
    unix_ms: u64,
    model: Option<String>,
    edits: Edits,
    dry_run: bool,
    messages: Sizes,
    bytes: Sizes,
    status: Option<u16>,
    end: Option<String>,
    stop_reason: Option<String>,
    usage: Option<Usage>,
}

#[derive(Debug, Default, Deserialize)]
struct Edits {
    #[serde(default)]
    patch: usize,
}

#[derive(Debug, Deserialize, Eq, PartialEq)]
struct Sizes {
    before: usize,
    after: usize,
}

#[derive(Debug, Deserialize)]
struct Usage {
    input: u64,
    cached: u64,
    output: u64,
}

// === impl EventListener ===

impl EventListener {
    /// Listens as the operator of the machine.
    pub(crate) async fn of_operator(abridge: &Abridge) -> Self {
        Self::with(abridge, &[OPERATOR]).await
    }

    /// Listens, with these lines in the head.
    pub(crate) async fn with(abridge: &Abridge, fields: &[&str]) -> Self {
        let mut wire = abridge.connect().await;
        wire.send(asking(fields)).await;
        let head = wire.head().await;
        assert_eq!((head.status(), head.get("content-type")), (200, Some("text/event-stream")), "{head:?}");
        assert_eq!(head.get("cache-control"), Some("no-store"));
        assert_eq!(wire.chunk().await.unwrap(), ": listening\n\n");
        Self(wire)
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let chunk = self.0.chunk().await?;
            let text = std::str::from_utf8(&chunk).unwrap();
            assert!(text.ends_with("\n\n"), "{text:?}");
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let (Some(kind), Some(json)) = (field("event: "), field("data: ")) {
                return Some(Event { id: field("id: "), kind, json });
            }
            assert!(text.starts_with(": "), "neither an event nor a comment: {text:?}");
        }
    }

    /// The next event, which is about an edited request.
    async fn next_body(&mut self) -> EventBody {
        let event = self.next().await.expect("an event");
        let body = EventBody::read(&event.json);
        assert_eq!((event.id.as_deref(), &*event.kind), (Some(&*body.id), &*body.r#type));
        body
    }
}

impl EventBody {
    pub(crate) fn read(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }
}

/// A request for events from this machine.
fn asking(fields: &[&str]) -> String {
    let lines = [&["host: localhost"], fields].concat().join("\r\n");
    format!("GET {PATH} HTTP/1.1\r\n{lines}\r\n\r\n")
}

/// Sends a request that is edited, and answers it.
pub(crate) async fn edited(scene: &mut Scene, fields: &[&str]) -> crate::support::wire::Reply {
    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, fields, DANGLING)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    let answer = concat!(
        "{\"choices\":[{\"finish_reason\":\"stop\",\"message\":{\"content\":\"hello\"}}],",
        "\"usage\":{\"prompt_tokens\":31,\"prompt_tokens_details\":{\"cached_tokens\":7},\"completion_tokens\":2}}"
    );
    call.answer("200 OK", &["content-type: application/json", "connection: close"], answer).await;
    client.reply().await
}

// === what is told ===

#[tokio::test]
async fn an_edited_request_has_an_event_before_and_after() {
    let mut scene = Scene::new().await;
    let mut listener = EventListener::of_operator(&scene.abridge).await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.answer("200 OK", &["connection: close"], "{}").await;
    scene.client.reply().await;
    let reply = edited(&mut scene, &[]).await;

    let before = listener.next_body().await;
    assert_eq!(before.r#type, "edit.before", "nothing is told of what is not edited");
    assert_eq!(Some(&*before.request_id), reply.head.get("x-abridge-request-id"));
    assert_eq!((before.model.as_deref(), before.edits.patch, before.dry_run), (Some("m"), 1, false));
    assert_eq!(before.messages, Sizes { before: 4, after: 5 });
    assert_eq!(before.bytes.before, DANGLING.len());
    assert!(before.bytes.after > before.bytes.before && before.unix_ms > 1_600_000_000_000);
    assert_eq!((before.status, before.end.as_deref()), (None, None));

    let after = listener.next_body().await;
    assert_eq!((&*after.r#type, &after.request_id), ("edit.after", &before.request_id));
    assert_eq!((after.edits.patch, after.bytes), (1, before.bytes));
    assert_eq!((after.status, after.end.as_deref()), (Some(200), Some("complete")));
    assert_eq!(after.stop_reason.as_deref(), Some("stop"));
    let usage = after.usage.unwrap();
    assert_eq!((usage.input, usage.cached, usage.output), (31, 7, 2));
    assert_ne!(after.id, before.id);
}

#[tokio::test]
async fn every_outcome_of_a_request_has_an_event() {
    let mut scene = Scene::new().await;
    let mut listener = EventListener::of_operator(&scene.abridge).await;

    // The upstream closes without an answer.
    drop(scene.ask(chat(DANGLING)).await);
    assert_eq!(scene.client.reply().await.head.status(), 502);
    assert_eq!(listener.next_body().await.r#type, "edit.before");
    let after = listener.next_body().await;
    assert_eq!((after.status, after.end.as_deref()), (None, Some("unanswered")));

    // The client goes before there is an answer.
    let mut client = scene.abridge.connect().await;
    client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    client.reset();
    call.gone().await;
    listener.next_body().await;
    let after = listener.next_body().await;
    assert_eq!((after.status, after.end.as_deref()), (None, Some("client_gone")));

    // The upstream breaks off in the middle.
    let mut client = scene.abridge.connect().await;
    client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    call.begin_stream().await;
    call.send_chunk("data: 1\n\n").await;
    client.head().await;
    call.into_wire().reset();
    client.rest().await;
    listener.next_body().await;
    let after = listener.next_body().await;
    assert_eq!((after.status, after.end.as_deref()), (Some(200), Some("cut")));
}

#[tokio::test]
async fn events_of_a_dry_run_say_so() {
    let mut scene = Scene::new().await;
    let mut listener = EventListener::of_operator(&scene.abridge).await;
    edited(&mut scene, &["x-abridge: dry-run"]).await;
    for kind in ["edit.before", "edit.after"] {
        let body = listener.next_body().await;
        assert_eq!((&*body.r#type, body.dry_run, body.edits.patch), (kind, true, 1));
    }
}

#[tokio::test]
async fn events_contain_neither_keys_nor_content() {
    let mut scene = Scene::new().await;
    let mut listener = EventListener::of_operator(&scene.abridge).await;
    edited(&mut scene, &["authorization: Bearer sk-secret"]).await;
    for _ in 0..2 {
        let json = listener.next().await.unwrap().json;
        // Of the beginning of the request, of its end, and of the answer.
        for secret in ["sk-secret", "call_a", "done", "and then?", "hello"] {
            assert!(!json.contains(secret), "{secret}: {json}");
        }
    }
}

// === who hears it ===

#[tokio::test]
async fn events_of_one_caller_never_reach_another() {
    let mut scene = Scene::new().await;
    let mut operator = EventListener::of_operator(&scene.abridge).await;
    let keys = [["authorization: Bearer a"], ["authorization: Bearer b"], ["api-key: c"]];
    let mut listener = Vec::new();
    for key in &keys {
        listener.push(EventListener::with(&scene.abridge, key).await);
    }
    let mut ids = Vec::new();
    for key in keys.iter().chain(&[["x-none: 1"]]).chain(keys.iter().rev()) {
        let reply = edited(&mut scene, key).await;
        ids.push(reply.head.get("x-abridge-request-id").unwrap().to_owned());
    }
    // The first and the last but so many are of the same caller; the one in the middle is of none that listens.
    for (n, listener) in listener.iter_mut().enumerate() {
        for id in [&ids[n], &ids[6 - n]] {
            for kind in ["edit.before", "edit.after"] {
                let body = listener.next_body().await;
                assert_eq!((&body.request_id, &*body.r#type), (id, kind));
            }
        }
    }
    for id in &ids {
        for _ in 0..2 {
            assert_eq!(operator.next_body().await.request_id, *id);
        }
    }
    scene.abridge.signal("TERM");
    for listener in listener.iter_mut().chain([&mut operator]) {
        assert!(listener.next().await.is_none(), "there was nothing else to hear");
    }
}

#[tokio::test]
async fn forwarded_clients_without_a_credential_get_no_events() {
    let scene = Scene::new().await;
    let mut client = scene.abridge.connect().await;
    client.send(asking(&["x-forwarded-for: 10.0.0.1"])).await;
    let reply = client.reply().await;
    assert_eq!(reply.head.status(), 401);
    assert!(std::str::from_utf8(&reply.body).unwrap().contains("credential"));
    // With one, whoever it is hears what is its own.
    EventListener::with(&scene.abridge, &["x-forwarded-for: 10.0.0.1", "authorization: Bearer a"]).await;
}

#[tokio::test]
async fn a_unix_socket_needs_a_credential_too() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("abridge.sock").display());
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).listen(&[&socket]).start().await;
    let mut client = abridge.connect().await;
    client.send(request("GET", PATH, &[])).await;
    assert_eq!(client.reply().await.head.status(), 401);
    client.send(request("GET", PATH, &[OPERATOR])).await;
    assert_eq!(client.head().await.status(), 200);
}

// === limits ===

#[tokio::test]
async fn the_number_of_listeners_is_limited_and_places_are_released() {
    let scene = Scene::with("events.listeners = 2").await;
    // Callers take no places of operators.
    let _callers = [
        EventListener::with(&scene.abridge, &["authorization: Bearer a"]).await,
        EventListener::with(&scene.abridge, &["authorization: Bearer b"]).await,
    ];
    let mut caller = scene.abridge.connect().await;
    caller.send(asking(&["authorization: Bearer c"])).await;
    assert_eq!(caller.reply().await.head.status(), 503);
    let first = EventListener::of_operator(&scene.abridge).await;
    let _second = EventListener::of_operator(&scene.abridge).await;
    let mut third = scene.abridge.connect().await;
    third.send(asking(&[OPERATOR])).await;
    let refused = third.reply().await;
    assert_eq!((refused.head.status(), refused.head.get("retry-after")), (503, Some("5")));
    assert_eq!(refused.body, "events.listeners is reached\n");
    drop(first);
    within("a place", async {
        loop {
            third.send(asking(&[OPERATOR])).await;
            let head = third.head().await;
            if head.status() == 200 {
                return;
            }
            third.body(&head).await;
        }
    })
    .await;
}

#[tokio::test]
async fn only_get_opens_an_event_stream() {
    let mut scene = Scene::with("events.listeners = 1").await;
    scene.client.send(post(PATH, &[], "")).await;
    let posted = scene.client.reply().await;
    assert_eq!((posted.head.status(), posted.head.get("allow")), (405, Some("GET, HEAD")));
    scene.client.send(asking(&[OPERATOR]).replacen("GET", "HEAD", 1)).await;
    assert_eq!(scene.client.head().await.status(), 200);
    // The place is free, and the connection is at the next answer.
    scene.client.send(asking(&[OPERATOR])).await;
    assert_eq!(scene.client.head().await.status(), 200);
}

#[tokio::test]
async fn an_idle_listener_gets_heartbeats() {
    let scene = Scene::with("events.heartbeat = \"20ms\"").await;
    let mut listener = EventListener::of_operator(&scene.abridge).await;
    for _ in 0..3 {
        assert_eq!(listener.0.chunk().await.unwrap(), ": still here\n\n");
    }
}

#[tokio::test]
async fn a_listener_does_not_delay_shutdown() {
    let scene = Scene::new().await;
    let mut listener = EventListener::of_operator(&scene.abridge).await;
    scene.abridge.signal("TERM");
    assert!(listener.next().await.is_none());
    listener.0.trailers().await;
    assert_eq!(listener.0.gone().await, End::Closed);
    assert!(scene.abridge.exit().await.success());
}
