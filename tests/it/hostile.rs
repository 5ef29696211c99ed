//! Bodies that no one should send. The upstream gets the same bytes, and its answer returns.

use crate::support::bodies::{DANGLING, assert_patched};
use crate::support::{Scene, chat};

/// Sends each body, and sees to it that it arrives as it was, on an abridge that lives on.
async fn arrive_as_they_were(bodies: impl IntoIterator<Item = Vec<u8>>) {
    let mut scene = Scene::new().await;
    for body in bodies {
        let send = async {
            scene.client.send(chat(&body)).await;
        };
        let receive = async {
            let mut call = scene.upstream.request().await;
            let bytes = call.bytes().await;
            (call, bytes)
        };
        let ((), (mut call, bytes)) = tokio::join!(send, receive);
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        assert!(bytes == body, "changed: {shown}");
        call.answer("400 Bad Request", &["connection: close"], "{\"error\":{\"message\":\"upstream's\"}}").await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 400, "{shown}");
        assert_eq!(reply.body, "{\"error\":{\"message\":\"upstream's\"}}", "{shown}");
    }
    // It still edits.
    scene.client.send(chat(DANGLING)).await;
    assert_patched(&scene.upstream.request().await.bytes().await);
}

async fn texts_arrive_as_they_were(bodies: &[&str]) {
    arrive_as_they_were(bodies.iter().map(|body| body.as_bytes().to_vec())).await;
}

#[tokio::test]
async fn bodies_that_are_not_json_are_forwarded_unchanged() {
    texts_arrive_as_they_were(&[
        "", " ", "null", "true", "0", "\"\"", "[]", "{", "}", "hello", "a=1&b=2", "NaN", "{}{}", "{'a':1}",
    ])
    .await;
}

#[tokio::test]
async fn json_without_a_messages_array_is_forwarded_unchanged() {
    texts_arrive_as_they_were(&[
        "{}",
        "{\"messages\":null}",
        "{\"messages\":{}}",
        "{\"messages\":\"x\"}",
        "{\"messages\":[]}",
        "{\"messages\":[1]}",
        "{\"messages\":[null]}",
        "{\"messages\":[[]]}",
        "{\"messages\":[{}]}",
        "{\"messages\":[{\"role\":1}]}",
        "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":{\"x\":1}}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"smell\"}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":null}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}",
    ])
    .await;
}

#[tokio::test]
async fn duplicate_and_escaped_keys_are_forwarded_unchanged() {
    let (id, calls) = (r#""id":"a""#, r#""tool_calls":[{"id":"a"}]"#);
    let call = format!(r#"{{"role":"assistant",{calls}}}"#);
    let body = |message: &str| format!(r#"{{"messages":[{message}]}}"#);
    // Whichever of the two one takes, a result is missing.
    let twice = [
        format!(r#"{{"messages":[{call}],"messages":[{call}]}}"#),
        format!(r#"{{"messages":[{call}],"m\u0065ssages":[{call}]}}"#),
        format!(r#"{{"model":"a","model":"b","messages":[{call}]}}"#),
        body(&format!(r#"{{"role":"assistant","role":"assistant",{calls}}}"#)),
        body(&format!(r#"{{"role":"assistant",{calls},{calls}}}"#)),
        body(&format!(r#"{{"role":"assistant","tool_calls":[{{{id},{id}}}]}}"#)),
    ];
    let escaped = [
        r#"{"m\u0065ssages":[{"role":"user","content":"a"}]}"#,
        r#"{"messages":[{"r\u006fle":"user","content":"a"}]}"#,
    ];
    arrive_as_they_were(twice.into_iter().chain(escaped.map(str::to_owned)).map(String::into_bytes)).await;
}

#[tokio::test]
async fn deep_nesting_is_forwarded_unchanged() {
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let (down, up) = ("{\"a\":".repeat(100_000), "}".repeat(100_000));
    let bodies = [
        open.clone(),
        format!("{open}{close}"),
        format!("{down}1{up}"),
        format!("{{\"messages\":{open}{close}}}"),
        format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{open}{close}}}]}}"),
        format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\",\"deep\":{down}1{up}}}]}}"),
        format!("{{\"deep\":{open}{close},\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}"),
    ];
    arrive_as_they_were(bodies.map(String::into_bytes)).await;
}

#[tokio::test]
async fn invalid_characters_are_forwarded_unchanged() {
    let texts: [&[u8]; 9] = [
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\\udc00\\ud800\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\0\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\n\t\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\xed\xa0\x80\"}]}",
        b"\xef\xbb\xbf{\"messages\":[{\"role\":\"user\",\"content\":\"bom\"}]}",
        b"\xff\xfe{\0}\0",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\\x\"}]}",
    ];
    arrive_as_they_were(texts.map(<[u8]>::to_vec)).await;
}

#[tokio::test]
async fn numbers_of_any_size_are_forwarded_unchanged() {
    let digits = "9".repeat(1_000_000);
    let bodies = [
        format!("{{\"seed\":{digits},\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}"),
        "{\"seed\":1e999999999,\"t\":-1E-999999999,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}".to_owned(),
        "{\"seed\":00,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}".to_owned(),
        "{\"seed\":-,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}".to_owned(),
        "{\"seed\":18446744073709551616,\"messages\":[{\"role\":\"user\",\"content\":1.0}]}".to_owned(),
    ];
    arrive_as_they_were(bodies.map(String::into_bytes)).await;
}

#[tokio::test]
async fn a_body_truncated_at_any_byte_is_forwarded_unchanged() {
    let n = DANGLING.len();
    arrive_as_they_were((1..n).step_by(7).map(|end| DANGLING.as_bytes()[..end].to_vec())).await;
}

#[tokio::test]
async fn very_large_counts_of_elements_are_forwarded_unchanged() {
    let messages = vec!["{\"role\":\"user\",\"content\":\"x\"}"; 100_000].join(",");
    let keys: Vec<_> = (0..100_000).map(|n| format!("\"k{n}\":{n},")).collect();
    let keys = keys.concat();
    let key = "k".repeat(1_000_000);
    let bodies = [
        format!("{{\"messages\":[{messages}]}}"),
        format!("{{{keys}\"messages\":[]}}"),
        format!("{{\"{key}\":1,\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}"),
        format!("{{\"messages\":[{}]}}", ",".repeat(100_000)),
        format!("{}{{}}", " ".repeat(1_000_000)),
        "\\".repeat(1_000_000),
        "\"".repeat(1_000_001),
    ];
    arrive_as_they_were(bodies.map(String::into_bytes)).await;
}
