//! Gateways read originals back by their hashes.

use serde_json::json;

use super::{KEY, answer, ask, ccr, original, part, serving};
use crate::support::offloads::long_text;
use crate::support::{post, request};

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
