//! What only Anthropic Messages has: keys, versions and beta features in header fields, thinking that is bound, marks.

use crate::support::summarizer::{INSTRUCTION, Play, Summarizer, talk};
use crate::support::wire::Reply;
use crate::support::{Abridge, Setup, post};

const PATH: &str = "/v1/messages";

/// A streamed answer that says this.
fn says(text: &str) -> Play {
    let event = |name: &str, rest: &str| format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n");
    let text = serde_json::to_string(text).unwrap();
    let events = [
        event("message_start", r#","message":{"usage":{"input_tokens":9}}"#),
        event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#),
        event("content_block_delta", &format!(r#","index":0,"delta":{{"type":"text_delta","text":{text}}}"#)),
        event("content_block_stop", r#","index":0"#),
        event("message_delta", r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}"#),
        event("message_stop", ""),
    ];
    Play::Raw(events.concat().into_bytes())
}

fn setup(upstream: &Summarizer) -> Setup {
    Setup::to(upstream.url())
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 900 }")
        .with("tokens.counter = \"estimate\"")
        .with("tokens.ask_upstream = false")
}

async fn ask(abridge: &Abridge, fields: &[&str], body: impl AsRef<[u8]>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(post(PATH, fields, body)).await;
    client.reply().await
}

#[tokio::test]
async fn a_model_of_its_own_gets_its_key_and_the_version_as_anthropic_reads_them() {
    for (sent, version) in [(&["anthropic-version: 2029-01-01"][..], "2029-01-01"), (&[], "2023-06-01")] {
        let upstream = Summarizer::playing([]).await;
        let model = Summarizer::playing([says("<summary>They talked.</summary>")]).await;
        let endpoint = format!(
            "summarize.model = {{ base_url = {:?}, model = \"small\", api_key_env = \"MODEL_KEY\" }}",
            model.url()
        );
        let abridge = setup(&upstream).with(endpoint).environment("MODEL_KEY", "sk-model").start().await;
        let fields = [sent, &["x-api-key: sk-client", "anthropic-beta: one"]].concat();
        let reply = ask(&abridge, &fields, talk("a", 3)).await;
        assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
        let calls = model.summaries();
        let head = &calls[0].head;
        assert_eq!((calls.len(), head.start.as_str()), (1, "POST /v1/messages HTTP/1.1"));
        assert_eq!((head.get("x-api-key"), head.get("anthropic-version")), (Some("sk-model"), Some(version)));
        assert_eq!((head.get("authorization"), head.get("anthropic-beta")), (None, None));
    }
}
