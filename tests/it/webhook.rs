//! The webhook: every event is posted, beside the requests, and what is lost is counted.

use std::process::Command;

use serde::Deserialize;

use crate::events::{EventBody, EventListener, edited};
use crate::support::{ClosedPort, Exchange, Scene, Upstream, binary};

/// A scene with a webhook, and the server that it is.
async fn scene(lines: &str) -> (Scene, Upstream) {
    let hook = Upstream::start().await;
    let scene = Scene::with(&format!("events.webhook = \"{}/hook?key=s3cret\"\n{lines}", hook.origin())).await;
    (scene, hook)
}

/// The next post on its own connection, its event, and an answer that ends the connection.
async fn posted(hook: &mut Upstream, status: &str) -> String {
    let mut call = hook.request().await;
    answered(&mut call, status).await
}

async fn answered(call: &mut Exchange, status: &str) -> String {
    let json = String::from_utf8(call.bytes().await.to_vec()).unwrap();
    call.answer(status, &["connection: close"], "").await;
    json
}

const OK: &str = "204 No Content";

#[tokio::test]
async fn every_event_is_posted_in_order() {
    let (mut scene, mut hook) = scene("").await;
    let mut ids = Vec::new();
    for key in ["authorization: Bearer a", "authorization: Bearer b"] {
        let reply = edited(&mut scene, &[key]).await;
        ids.push(reply.head.get("x-abridge-request-id").unwrap().to_owned());
    }
    let mut call = hook.request().await;
    assert_eq!(call.head.start, "POST /hook?key=s3cret HTTP/1.1");
    assert_eq!(call.head.get("content-type"), Some("application/json"));
    assert_eq!(call.head.get("authorization"), None, "a caller's key is none of the webhook's business");
    let mut told = vec![answered(&mut call, OK).await];
    for _ in 0..3 {
        told.push(posted(&mut hook, "200 OK").await);
    }
    for (json, (n, kind)) in
        told.iter().zip([(0, "edit.before"), (0, "edit.after"), (1, "edit.before"), (1, "edit.after")])
    {
        assert_eq!(EventBody::read(json).r#type, kind);
        assert!(json.contains(&ids[n]), "{json}");
    }
}

#[tokio::test]
async fn the_webhook_and_operators_get_the_savings_of_all_and_callers_do_not() {
    #[derive(Debug, Deserialize)]
    struct Told {
        savings: Option<String>,
    }
    let read = |json: &str| serde_json::from_str::<Told>(json).unwrap().savings;
    let (mut scene, mut hook) = scene("").await;
    let mut caller = EventListener::with(&scene.abridge, &["authorization: Bearer a"]).await;
    let mut operator = EventListener::of_operator(&scene.abridge).await;
    edited(&mut scene, &["authorization: Bearer a"]).await;
    assert_eq!(read(&posted(&mut hook, OK).await), None, "nothing is saved before the answer");
    let of_all = read(&posted(&mut hook, OK).await);
    assert!(of_all.as_ref().is_some_and(|savings| savings.starts_with("saved 0 of ")), "{of_all:?}");
    for (listener, expected) in [(&mut caller, None), (&mut operator, of_all)] {
        let [before, after] = [listener.next().await.unwrap(), listener.next().await.unwrap()];
        assert_eq!((&*before.kind, &*after.kind), ("edit.before", "edit.after"));
        assert_eq!((read(&before.json), read(&after.json)), (None, expected));
    }
}

#[tokio::test]
async fn a_connection_serves_many_events() {
    let (mut scene, mut hook) = scene("").await;
    edited(&mut scene, &[]).await;
    let mut call = hook.request().await;
    call.bytes().await;
    call.answer("200 OK", &[], "thanks").await;
    let mut call = call.next().await;
    assert_eq!(EventBody::read(std::str::from_utf8(&call.bytes().await).unwrap()).r#type, "edit.after");
}

#[tokio::test]
async fn failed_posts_are_counted_and_logged_once() {
    let (mut scene, mut hook) = scene("").await;
    edited(&mut scene, &[]).await;
    assert_eq!(EventBody::read(&posted(&mut hook, "500 Oops").await).r#type, "edit.before");
    // Each event is tried once. The second gives the note of the first.
    assert_eq!(posted(&mut hook, "503 Oops").await, "{\"type\":\"events.lost\",\"lost\":1}");
    let line = scene.abridge.says("events cannot be posted to the webhook", 0).await;
    assert!(line.contains("it answered 500") && !line.contains("s3cret"), "{line}");

    edited(&mut scene, &[]).await;
    assert_eq!(posted(&mut hook, OK).await, "{\"type\":\"events.lost\",\"lost\":2}");
    scene.abridge.says("posted to the webhook again", 0).await;
    for kind in ["edit.before", "edit.after"] {
        assert_eq!(EventBody::read(&posted(&mut hook, OK).await).r#type, kind);
    }
    let warnings =
        scene.abridge.stderr().iter().filter(|line| line.contains("cannot be posted to the webhook")).count();
    assert_eq!(warnings, 1);
}

#[tokio::test]
async fn a_webhook_that_hangs_delays_no_request_and_loses_the_oldest_events() {
    let (mut scene, mut hook) = scene("events.queue = 2\nevents.webhook_timeout = \"1s\"").await;
    edited(&mut scene, &[]).await;
    let hanging = hook.request().await;
    for _ in 0..5 {
        // The webhook holds one event and two wait; the requests are answered all the same.
        assert_eq!(edited(&mut scene, &[]).await.head.status(), 200);
    }
    let line = scene.abridge.says("events cannot be posted to the webhook", 0).await;
    assert!(line.contains("it did not answer within 1000 ms"), "{line}");
    drop(hanging);
    // Everything that was tried before may still are there; the last of it is the note, and then what was not lost.
    let mut told = Vec::new();
    let serving = async {
        loop {
            told.push(posted(&mut hook, OK).await);
        }
    };
    tokio::select! {
        biased; // an answered post is noted before the log line ends the wait
        () = serving => {}
        _ = scene.abridge.says("posted to the webhook again", 0) => {}
    }
    let json = told.iter().rfind(|json| json.contains("events.lost")).unwrap();
    let lost = json.strip_prefix("{\"type\":\"events.lost\",\"lost\":").and_then(|n| n.strip_suffix('}'));
    let lost: usize = lost.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{json}"));
    assert!(lost >= 10, "of twelve events the one that hung is lost, and all that did not fit into the queue: {lost}");
    let reply = edited(&mut scene, &[]).await;
    let id = reply.head.get("x-abridge-request-id").unwrap();
    let mut json = String::new();
    while !(json.contains(id) && EventBody::read(&json).r#type == "edit.after") {
        json = posted(&mut hook, OK).await;
    }
}

#[tokio::test]
async fn an_unreachable_webhook_delays_no_request() {
    let closed = ClosedPort::new();
    let mut scene = Scene::with(&format!("events.webhook = \"http://{}/x\"", closed.address())).await;
    for _ in 0..3 {
        assert_eq!(edited(&mut scene, &[]).await.head.status(), 200);
    }
    let line = scene.abridge.says("events cannot be posted to the webhook", 0).await;
    assert!(line.contains("no connection to it"), "{line}");
}

#[tokio::test]
async fn the_last_events_are_posted_before_the_end() {
    let (mut scene, mut hook) = scene("").await;
    edited(&mut scene, &[]).await;
    scene.abridge.signal("TERM");
    for kind in ["edit.before", "edit.after"] {
        assert_eq!(EventBody::read(&posted(&mut hook, OK).await).r#type, kind);
    }
    assert!(scene.abridge.exit().await.success());
}

#[tokio::test]
async fn the_path_of_the_webhook_is_neither_logged_nor_printed() {
    let (mut scene, mut hook) = scene("log.level = \"trace\"").await;
    edited(&mut scene, &[]).await;
    posted(&mut hook, "400 Bad Request").await;
    scene.abridge.says("events cannot be posted to the webhook", 0).await;
    let lines = scene.abridge.stderr().join("\n");
    assert!(!lines.contains("s3cret"), "{lines}");
    let mut command = Command::new(binary());
    let output = command.arg("check-config").arg("--config").arg(scene.abridge.config()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("/***\"") && !printed.contains("s3cret"), "{printed}");
}
