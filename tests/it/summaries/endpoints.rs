//! Models of the settings' own: asked in their turn, with their own keys and nothing of a client's.

use super::*;
use crate::support::post;
use crate::support::summarizer::Asked;
use crate::support::wire::Reply;

const MODEL_KEY: (&str, &str) = ("MODEL_KEY", "sk-model");
const FAILOVER_KEY: (&str, &str) = ("FAILOVER_KEY", "sk-failover");

async fn ask_as_client(abridge: &Abridge, seed: &str) -> Reply {
    let mut client = abridge.connect().await;
    let fields = [
        "content-type: application/json",
        "authorization: Bearer sk-client",
        "api-key: sk-azure",
        "cookie: c=1",
        "x-tenant: t",
    ];
    client.send(post("/v1/chat/completions?key=sk-query", &fields, talk(seed, 3))).await;
    client.reply().await
}

/// Nothing of the client's is in a call but what is to be summarised.
fn check_own(call: &Asked, key: Option<&str>, model: &str) {
    assert_eq!(call.head.get("authorization"), key.map(|key| format!("Bearer {key}")).as_deref());
    assert_eq!(call.head.start, "POST /v1/chat/completions HTTP/1.1");
    let raw = String::from_utf8_lossy(&call.head.raw).to_lowercase();
    for secret in ["sk-client", "sk-azure", "sk-query", "sk-upstream", "cookie", "x-tenant", "x-fixed"] {
        assert!(!raw.contains(secret), "{raw}");
    }
    assert!(call.text().contains(&format!("\"model\":\"{model}\"")), "{}", call.text());
}

#[tokio::test]
async fn a_model_of_its_own_gets_its_own_key() {
    let (upstream, model) = (Summarizer::playing([]).await, Summarizer::playing([]).await);
    let abridge = setup(&upstream)
        .with("upstream.headers = { x-fixed = \"sk-upstream\" }")
        .with(format!(
            "summarize.model = {{ base_url = {:?}, model = \"small\", api_key_env = \"MODEL_KEY\" }}",
            model.url()
        ))
        .environment(MODEL_KEY.0, MODEL_KEY.1)
        .start()
        .await;
    abridge.says("with the key of summarize.model", 0).await;
    assert_eq!(ask_as_client(&abridge, "a").await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!((upstream.summaries().len(), model.summaries().len()), (0, 1));
    check_own(&model.summaries()[0], Some("sk-model"), "small");
    assert!(!String::from_utf8_lossy(&upstream.chats()[0].head.raw).contains("sk-model"));
    assert!(!abridge.stderr().concat().contains("sk-"));
}

#[tokio::test]
async fn failover_endpoints_are_called_in_order() {
    let bad = Play::Status("401 Unauthorized", &[], "{}");
    let upstream = Summarizer::playing([bad.clone()]).await;
    let (first, second) = (Summarizer::playing([bad]).await, Summarizer::playing([]).await);
    let abridge = setup(&upstream)
        .with(format!(
            "summarize.failover = [{{ base_url = {:?}, model = \"one\", api_key_env = \"FAILOVER_KEY\" }}, {{ base_url = {:?}, model = \"two\" }}]",
            first.url(),
            second.url()
        ))
        .environment(FAILOVER_KEY.0, FAILOVER_KEY.1)
        .start()
        .await;
    assert_eq!(ask_as_client(&abridge, "a").await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(upstream.summaries()[0].head.get("authorization"), Some("Bearer sk-client"));
    check_own(&first.summaries()[0], Some("sk-failover"), "one");
    check_own(&second.summaries()[0], None, "two");
    assert_eq!([&upstream, &first, &second].map(|all| all.summaries().len()), [1, 1, 1]);
    assert!(upstream.chats()[0].text().contains("They talked."));
}

#[tokio::test]
async fn a_silent_endpoint_leaves_time_for_the_next() {
    for play in [Play::Hang, Play::Stall] {
        let (upstream, other) = (Summarizer::playing([play]).await, Summarizer::playing([]).await);
        let abridge = setup_within(&upstream, "6s")
            .with("summarize.trigger = { tokens = 900 }")
            .with(format!("summarize.failover = [{{ base_url = {:?}, model = \"other\" }}]", other.url()))
            .start()
            .await;
        assert_eq!(ask_as_client(&abridge, "a").await.head.get("x-abridge-edits"), Some("summary=1"));
        assert_eq!([&upstream, &other].map(|all| all.summaries().len()), [1, 1]);
    }
}

#[tokio::test]
async fn a_reload_replaces_the_endpoints() {
    let (upstream, other) = (Summarizer::playing([]).await, Summarizer::playing([]).await);
    let abridge = setup(&upstream).start().await;
    ask_as_client(&abridge, "a").await;
    abridge.reload_with(&format!("summarize.model = {{ base_url = {:?}, model = \"other\" }}", other.url()));
    abridge.says("settings reloaded", 0).await;
    ask_as_client(&abridge, "b").await;
    assert_eq!([&upstream, &other].map(|all| all.summaries().len()), [1, 1]);
}

#[tokio::test]
async fn a_missing_key_stops_the_start() {
    let upstream = Summarizer::playing([]).await;
    let model =
        "summarize.model = { base_url = \"http://127.0.0.1:1/v1\", model = \"m\", api_key_env = \"NO_SUCH_KEY\" }";
    let failed = setup(&upstream).with(model).fail().await;
    assert!(failed.stderr.contains("NO_SUCH_KEY: not set"), "{}", failed.stderr);
}

#[tokio::test]
async fn an_invalid_url_is_reported_without_its_password() {
    let upstream = Summarizer::playing([]).await;
    let model = "summarize.model = { base_url = \"http://user:sk-secret@host/v1\", model = \"m\" }";
    let failed = setup(&upstream).with(model).fail().await;
    assert!(failed.stderr.contains("summarize.model.base_url: not an upstream URL"), "{}", failed.stderr);
    assert!(!failed.stderr.contains("sk-secret"), "{}", failed.stderr);
}
