//! Gateways read originals back by their hashes.
#![expect(clippy::disallowed_types, reason = "what gateways say, made and read here")]

use abridge_proxy::payload::handles_in;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{EAGER, KEY, ON, answer, ask, ccr, original, part, serving};
use crate::support::offloads::long_text;
use crate::support::{Setup, Upstream, post, request};

#[tokio::test]
async fn an_original_above_16_mib_ends_at_a_character_and_says_how_much_is_left_out() {
    let abridge = serving("tokens.counter = \"estimate\"").await;
    let at = abridge.address();
    // The limit falls within the last character.
    let text = format!("x{}", "\u{e9}".repeat(8 << 20));
    let told = answer(at, &[KEY], &ccr(&part(std::slice::from_ref(&text)))).await;
    let [hash] = told.ccr_hashes.as_slice() else { panic!("{:?}", told.ccr_hashes) };
    let read = original(at, &[KEY], hash).await.unwrap();
    let (whole, end) = read.split_once('\n').unwrap();
    assert!(text.strip_suffix('\u{e9}') == Some(whole), "{} bytes", whole.len());
    assert_eq!(end, "[the last 2 of 16777217 bytes are left out here: an answer has at most 16 MiB]");
}

#[tokio::test]
async fn an_original_that_is_not_text_is_read_back_as_base64() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(ON).with(EAGER).with("recall.via = \"http\"").start().await;
    let head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x03\x20\x08\x02\0\0\0";
    let image = [head.as_slice(), &[0xFF; 900]].concat();
    let source = json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(&image)});
    let turn = |id: &str, content: Value| {
        [
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "look", "input": {}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]}),
        ]
    };
    let shown = turn("t1", json!([{"type": "image", "source": source}]));
    let turns = [shown, turn("t2", "line\n".repeat(900).into())].concat();
    let sent = [vec![json!({"role": "user", "content": "go on ".repeat(500)})], turns].concat();
    // The gateway's caller has sent an image through the proxy, too.
    let mut client = abridge.connect().await;
    client.send(post("/v1/messages", &[KEY], json!({"model": "gpt-4o", "messages": sent}).to_string())).await;
    let mut call = upstream.request().await;
    let handle = handles_in(std::str::from_utf8(&call.bytes().await).unwrap()).next().expect("the image is cleared");
    call.json("{}").await;
    let hash = handle.hash();
    let reply = ask(abridge.address(), request("GET", &format!("/v1/retrieve/{hash}"), &[KEY])).await;
    let said: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.head.status(), &said["content_type"]), (200, &json!("image/png")), "{said}");
    assert_eq!(STANDARD.decode(said["original_base64"].as_str().unwrap()).unwrap(), image);
    let sentence = format!("[{} bytes of image/png, which are not text; original_base64 has them]", image.len());
    assert_eq!((&said["hash"], &said["original_content"]), (&json!(hash), &json!(sentence)));
}

#[tokio::test]
async fn tenants_of_one_gateway_read_nothing_of_each_other() {
    let abridge = serving("").await;
    let at = abridge.address();
    let sent = part(&[long_text(1)]);
    let with_session =
        |session: &str| json!({"messages": sent, "config": {"mode": "ccr", "session_id": session}}).to_string();
    let (one, other) = ("x-headroom-affinity: 1a", "x-headroom-affinity: 2b");
    let plain = answer(at, &[KEY], &ccr(&sent)).await.ccr_hashes.remove(0);
    let of_one = answer(at, &[KEY, one], &ccr(&sent)).await.ccr_hashes.remove(0);
    let of_session = answer(at, &[KEY], &with_session("1a")).await.ccr_hashes.remove(0);
    assert_eq!(of_one, of_session);
    assert_ne!(plain, of_one);
    assert_eq!(answer(at, &[KEY, one], &with_session("x")).await.ccr_hashes, [of_one.as_str()]);
    assert!(original(at, &[KEY], &plain).await.is_ok() && original(at, &[KEY, one], &of_one).await.is_ok());
    let by_query = ask(at, request("GET", &format!("/v1/retrieve/{of_one}?session_id=1%61"), &[KEY])).await;
    assert_eq!(by_query.head.status(), 200);
    let by_body = ask(at, post("/v1/retrieve", &[KEY], json!({"hash": of_one, "session_id": "1a"}).to_string())).await;
    assert_eq!(by_body.head.status(), 200);
    for (fields, hash) in [
        (&[KEY][..], &of_one),
        (&[KEY, other], &of_one),
        (&[KEY, one], &plain),
        (&["authorization: Bearer other", one], &of_one),
        (&[one], &of_one),
    ] {
        assert_eq!(original(at, fields, hash).await, Err(404), "{fields:?}");
    }
}
