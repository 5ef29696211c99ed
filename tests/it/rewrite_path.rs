//! `POST /abridge/rewrite` answers with what would be sent.

use crate::support::bodies::DANGLING;
use crate::support::offloads::{long_text, with_results};
use crate::support::wire::Reply;
use crate::support::{OPERATOR, Setup, Upstream, Wire, converse, post, request};

/// Edits that act on short conversations.
const EAGER: &str = "tokens.counter = \"estimate\"\ntruncate_tool_results.max_bytes = 600";

async fn ask(at: std::net::SocketAddr, message: impl AsRef<[u8]>) -> Reply {
    let mut client = Wire::connect(at).await;
    client.send(message).await;
    client.reply().await
}

#[tokio::test]
async fn a_body_is_rewritten_to_what_would_be_sent() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(EAGER).start().await;
    let at = abridge.address();
    let client = "authorization: Bearer sk-client";
    for body in [DANGLING.to_owned(), with_results(&[long_text(1), long_text(2)])] {
        let fields = [OPERATOR, "x-abridge-authorization: Bearer sk-client"];
        let rewritten = ask(at, post("/abridge/rewrite", &fields, &body)).await;
        assert_eq!(rewritten.head.status(), 200);
        assert!(rewritten.head.get("x-abridge-edits").is_some_and(|edits| !edits.is_empty()));
        let by_path = ask(at, post("/abridge/rewrite/v1/chat/completions", &fields, &body)).await;
        let sent = converse(at, &mut upstream, client, &body).await;
        assert_eq!([&rewritten.body[..], &by_path.body[..]], [&sent[..]; 2]);
        let reported = ask(at, post("/abridge/rewrite?report=true", &fields, &body)).await;
        let text = String::from_utf8(reported.body.to_vec()).unwrap();
        assert!(text.starts_with(&format!("{{\"body\":{},\"report\":{{", String::from_utf8(sent).unwrap())), "{text}");
    }
    for (method, fields, status) in [("POST", &["x: 1"][..], 401), ("GET", &[OPERATOR], 405)] {
        let reply = ask(at, request(method, "/abridge/rewrite", &[fields, &["content-length: 0"]].concat())).await;
        assert_eq!(reply.head.status(), status, "{method}");
    }
    let other = ask(at, post("/abridge/rewrite", &[OPERATOR], "{ \"model\": 1 }")).await;
    assert_eq!((other.head.status(), &other.body[..]), (200, &b"{ \"model\": 1 }"[..]));
    upstream.no_more();
}
