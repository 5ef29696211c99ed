//! One of several callers leaves places and memory to the others, and all of them leave some to operators.

use http_body_util::Full;
use hyper::Request;

use crate::failures::refused;
use crate::metrics::scrape;
use crate::support::bodies::PLAIN;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::{Abridge, OPERATOR, Scene, Setup, Upstream, Wire, chat, http2, post, request, within};

const CHAT: &str = "/v1/chat/completions";
const ANN: &str = "authorization: Bearer sk-ann";
const BOB: &str = "authorization: Bearer sk-bob";

/// Sends a request that stays in flight, and returns what holds it.
async fn hold(scene: &mut Scene, key: &str) -> (Wire, impl Sized + use<>) {
    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, &[key], PLAIN)).await;
    let call = scene.upstream.request().await;
    (client, call)
}

/// Both callers have sent a request, so abridge knows that there are two.
async fn known(scene: &mut Scene) {
    for key in [ANN, BOB] {
        let mut client = scene.abridge.connect().await;
        client.send(post(CHAT, &[key], PLAIN)).await;
        let mut call = scene.upstream.request().await;
        call.answer("200 OK", &["connection: close"], "{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
}

#[tokio::test]
async fn one_caller_alone_takes_all_and_one_of_several_its_share() {
    let mut scene = Scene::with("server.max_in_flight = 4").await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(hold(&mut scene, ANN).await);
    }
    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, &[ANN], PLAIN)).await;
    refused(&client.reply().await, 503, "overloaded");
    held.clear();

    within("the places to be free", async { while in_flight(&scene.abridge).await > 0 {} }).await;
    known(&mut scene).await;
    for _ in 0..2 {
        held.push(hold(&mut scene, ANN).await);
    }
    client.send(post(CHAT, &[ANN], PLAIN)).await;
    let reply = client.reply().await;
    refused(&reply, 429, "over_share");
    assert_eq!(reply.head.get("retry-after"), Some("1"));
    scene.abridge.says("has taken its share of requests or memory (limits.caller_share)", 0).await;
    // It holds for what is not edited, too.
    client.send(request("GET", "/v1/models", &[ANN])).await;
    refused(&client.reply().await, 429, "over_share");
    for _ in 0..2 {
        held.push(hold(&mut scene, BOB).await);
    }
    let mut other = scene.abridge.connect().await;
    other.send(post(CHAT, &[BOB], PLAIN)).await;
    refused(&other.reply().await, 429, "over_share");
    // A place is free again when its request has ended.
    drop(held.remove(0));
    within("a place", async {
        loop {
            let mut client = scene.abridge.connect().await;
            client.send(post(CHAT, &[ANN], PLAIN)).await;
            tokio::select! {
                reply = client.reply() => assert_eq!(reply.head.status(), 429),
                _ = scene.upstream.request() => return,
            }
        }
    })
    .await;
}

async fn in_flight(abridge: &Abridge) -> u64 {
    scrape(abridge).await.get("abridge_in_flight")
}

#[tokio::test]
async fn with_a_share_of_one_a_caller_takes_what_there_is() {
    let mut scene = Scene::with("server.max_in_flight = 2\nlimits.caller_share = 1.0").await;
    known(&mut scene).await;
    let _held = [hold(&mut scene, ANN).await, hold(&mut scene, ANN).await];
    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, &[BOB], PLAIN)).await;
    refused(&client.reply().await, 503, "overloaded");
}

#[tokio::test]
async fn a_caller_with_long_bodies_leaves_memory_for_the_other() {
    const BODY: usize = 300 << 10;
    let mut scene =
        Scene::with("server.max_body = \"1MiB\"\nserver.max_buffered = \"2MiB\"\nserver.body_timeout = \"3s\"").await;
    known(&mut scene).await;
    // Bodies without their last bytes.
    let mut greedy = Vec::new();
    let mut n_refused = 0;
    for _ in 0..8 {
        let mut client = scene.abridge.connect().await;
        let request = post(CHAT, &[ANN], vec![b' '; BODY]);
        client.try_send(&request[..request.len() - 10]).await.ok();
        greedy.push(client);
    }
    within("the memory to be taken", async {
        while scrape(&scene.abridge).await.get("abridge_buffered_bytes") < 600 << 10 {}
    })
    .await;
    let mut other = scene.abridge.connect().await;
    other.send(post(CHAT, &[BOB], vec![b' '; BODY])).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await.len(), BODY);
    call.answer("200 OK", &["connection: close"], "{}").await;
    assert_eq!(other.reply().await.head.status(), 200);
    for mut client in greedy.drain(2..) {
        let reply = within("an answer", client.reply()).await;
        n_refused += usize::from(reply.head.status() == 429);
    }
    assert!(n_refused >= 4, "{n_refused}");
}

/// Sends a request on a connection, and has the upstream answer it. Returns the status and the field `connection`.
async fn asked(scene: &mut Scene, client: &mut Wire, key: &str) -> (u16, Option<String>) {
    client.send(request("GET", "/v1/models", &[key])).await;
    let reply = tokio::select! {
        reply = client.reply() => reply,
        mut call = scene.upstream.request() => {
            call.answer("200 OK", &["connection: close"], "{}").await;
            client.reply().await
        }
    };
    (reply.head.status(), reply.head.get("connection").map(str::to_owned))
}

#[tokio::test]
async fn a_caller_with_many_connections_leaves_some_to_the_other() {
    let mut scene = Scene::with("server.max_connections = 8").await;
    let mut held = Vec::new();
    // Alone, it may have more than a half.
    for _ in 0..5 {
        held.push(scene.abridge.connect().await);
        assert_eq!(asked(&mut scene, held.last_mut().unwrap(), ANN).await, (200, None));
    }
    known(&mut scene).await;
    // It has too many now, so the next request is answered with the end of its connection.
    let mut greedy = held.remove(0);
    assert_eq!(asked(&mut scene, &mut greedy, ANN).await, (429, Some("close".to_owned())));
    greedy.rest().await;
    scene.abridge.says("has taken its share of connections (limits.caller_share)", 0).await;
    for _ in 0..4 {
        let mut more = scene.abridge.connect().await;
        more.send(post(CHAT, &[ANN], PLAIN)).await;
        let reply = more.reply().await;
        refused(&reply, 429, "over_share");
        assert_eq!((reply.head.get("retry-after"), reply.head.get("connection")), (Some("1"), Some("close")));
        more.rest().await;
    }
    // Those that it has go on, and the other has its own.
    let mut of_bob = scene.abridge.connect().await;
    for _ in 0..2 {
        assert_eq!(asked(&mut scene, &mut of_bob, BOB).await.0, 200);
        assert_eq!(asked(&mut scene, &mut held[3], ANN).await.0, 200);
    }
    // Over HTTP/2 the connection ends as well.
    let mut client = http2::client(scene.abridge.connect().await.into_socket()).await;
    let uri = format!("http://{}/v1/models", scene.abridge.address());
    let refused = Request::get(&uri).header("authorization", "Bearer sk-ann").body(Full::default()).unwrap();
    let answer = within("an answer", client.send_request(refused)).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("connection")), (429, None));
    within("the connection to end", async {
        while client.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // One that is closed, or that another caller uses, makes room for another.
    assert_eq!(asked(&mut scene, &mut held[0], BOB).await.0, 200);
    assert_eq!(asked(&mut scene, &mut held[1], ANN).await.0, 200);
    let mut next = scene.abridge.connect().await;
    assert_eq!(asked(&mut scene, &mut next, ANN).await.0, 200);
    drop(held.pop());
    within("a connection", async {
        loop {
            let mut client = scene.abridge.connect().await;
            if asked(&mut scene, &mut client, ANN).await.0 == 200 {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn operators_are_answered_while_clients_have_taken_everything() {
    let mut upstream = Upstream::start().await;
    let lines = "server.max_in_flight = 1\nserver.max_connections = 2\nadmin.listen = \"127.0.0.1:0\"";
    let abridge = Setup::before(&upstream).with(lines).start().await;
    let line = abridge.says("abridge: operators at ", 0).await;
    let operators = line.split_once("http://").unwrap().1.split_once("/abridge/").unwrap().0.parse().unwrap();
    let mut client = abridge.connect().await;
    let text = long_text(1);
    client.send(chat(with_results(std::slice::from_ref(&text)))).await;
    let mut call = upstream.request().await;
    let handle = recalls(&call.bytes().await).remove(0);
    call.json("{}").await;
    client.reply().await;

    client.send(chat(PLAIN)).await;
    let _in_flight = call.next().await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(abridge.connect().await);
    }
    for path in ["/abridge/healthz", "/abridge/readyz", "/abridge/metrics", "/abridge/status", handle.as_str()] {
        let mut operator = Wire::connect(operators).await;
        operator.send(request("GET", path, &[OPERATOR])).await;
        let reply = within("an answer", operator.reply()).await;
        assert_eq!(reply.head.status(), 200, "{path}");
        assert!(path != handle || reply.body == text.as_bytes());
    }
}
