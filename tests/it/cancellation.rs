//! The client goes away, and the upstream learns it at once: streamed, not streamed, before and after the head.

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::http2::{self, Held};
use crate::support::upstream::head;
use crate::support::{Scene, Setup, Upstream, chat, request, within};

#[tokio::test]
async fn a_stream_whose_client_disconnects_is_cancelled() {
    for body in [PLAIN, DANGLING] {
        let mut scene = Scene::new().await;
        let mut call = scene.stream(chat(body)).await;
        drop(scene.client);
        call.gone().await;
    }
}

#[tokio::test]
async fn a_stream_whose_client_resets_is_cancelled() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.begin_stream().await;
    scene.client.head().await;
    scene.client.reset();
    call.gone().await;
}

#[tokio::test]
async fn a_call_whose_client_goes_before_the_answer_is_cancelled() {
    for body in [PLAIN, DANGLING] {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(chat(body)).await;
        drop(scene.client);
        call.gone().await;
    }
}

#[tokio::test]
async fn a_passed_request_whose_client_goes_before_the_answer_is_cancelled() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/models", &[])).await;
    let mut call = scene.upstream.request().await;
    drop(scene.client);
    call.gone().await;
}

#[tokio::test]
async fn an_answer_of_known_length_whose_client_goes_is_cancelled() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &["content-length: 1000"])).await;
    call.send("begin").await;
    scene.client.head().await;
    scene.client.exactly(5).await;
    drop(scene.client);
    call.gone().await;
}

#[tokio::test]
async fn an_upload_whose_client_goes_is_not_finished_for_it() {
    let mut scene = Scene::new().await;
    scene.client.send(request("POST", "/v1/files", &["transfer-encoding: chunked"])).await;
    scene.client.send_chunk("begin").await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.chunk().await.unwrap(), "begin");
    drop(scene.client);
    call.gone().await;
}

#[tokio::test]
async fn a_chat_request_whose_client_goes_in_its_middle_never_reaches_the_upstream() {
    let mut scene = Scene::new().await;
    let whole = chat(PLAIN);
    scene.client.send(&whole[..whole.len() - 10]).await;
    drop(scene.client);

    let mut other = scene.abridge.connect().await;
    other.send(request("GET", "/v1/models", &[])).await;
    let call = scene.upstream.request().await;
    assert_eq!(call.head.target(), "/v1/models");
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_call_over_http2_whose_client_goes_is_cancelled_and_its_connection_is_kept() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with("upstream.http = \"2\"").start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let mut held = http2::hold(upstream.connection().await.into_socket());
    assert_eq!(within("a request", held.recv()).await, Some(Held::Came));
    drop(client);
    assert_eq!(within("its end", held.recv()).await, Some(Held::Cancelled));

    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    assert_eq!(within("a request", held.recv()).await, Some(Held::Came));
    upstream.no_more();
}

#[tokio::test]
async fn one_client_going_does_not_touch_the_others() {
    let mut scene = Scene::new().await;
    let mut other = scene.abridge.connect().await;
    other.send(chat(PLAIN)).await;
    let mut stays = scene.upstream.request().await;
    stays.bytes().await;
    stays.begin_stream().await;
    other.head().await;

    scene.client.send(chat(PLAIN)).await;
    let mut goes = scene.upstream.request().await;
    goes.bytes().await;
    drop(scene.client);
    goes.gone().await;

    stays.send_chunk("data: 1\n\n").await;
    assert_eq!(other.chunk().await.unwrap(), "data: 1\n\n");
}
