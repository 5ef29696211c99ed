//! Where a request goes: the client's path, joined to the upstream's.

use crate::support::bodies::{DANGLING, assert_patched};
use crate::support::{Abridge, Setup, Upstream, post, request};

/// Sends to each path, and sees which one the upstream gets. `base` is the path of `upstream.url`.
async fn joins(base: &str, cases: &[(&str, &str)]) {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::to(format!("{}{base}", upstream.origin())).start().await;
    for (sent, expected) in cases {
        let mut client = abridge.connect().await;
        client.send(request("GET", sent, &[])).await;
        let mut call = upstream.request().await;
        assert_eq!(call.head.target(), *expected, "{base} and {sent}");
        assert_eq!(call.head.get("host"), Some(&*upstream.address().to_string()));
        call.json("{}").await;
        client.reply().await;
    }
}

#[tokio::test]
async fn an_upstream_with_v1_and_a_client_with_or_without() {
    for base in ["/v1", "/v1/"] {
        let cases = [
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/models?limit=2", "/v1/models?limit=2"),
            ("/v1", "/v1"),
            ("/v1x/y", "/v1/v1x/y"),
        ];
        joins(base, &cases).await;
    }
}

#[tokio::test]
async fn an_upstream_without_a_path_gets_the_clients() {
    for base in ["", "/"] {
        let cases = [
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/chat/completions", "/chat/completions"),
            ("/", "/"),
            ("/?a=1", "/?a=1"),
        ];
        joins(base, &cases).await;
    }
}

#[tokio::test]
async fn an_upstream_with_a_path_of_its_own_keeps_it() {
    let cases = [
        ("/v1/chat/completions", "/api/v1/chat/completions"),
        ("/chat/completions", "/api/v1/chat/completions"),
        ("/api/v1/chat/completions", "/api/v1/chat/completions"),
    ];
    joins("/api/v1", &cases).await;
    let cases = [
        ("/v1/chat/completions", "/v1beta/openai/chat/completions"),
        ("/chat/completions", "/v1beta/openai/chat/completions"),
    ];
    joins("/v1beta/openai", &cases).await;
}

#[tokio::test]
async fn azures_paths_and_versions_arrive() {
    let deployment = "/openai/deployments/d%201/chat/completions?api-version=2024-10-21&x=%20a+b";
    joins("", &[(deployment, deployment)]).await;
    joins("/openai/v1", &[(deployment, deployment)]).await;
    let cases = [("/chat/completions?api-version=1", "/openai/deployments/d/chat/completions?api-version=1")];
    joins("/openai/deployments/d", &cases).await;
}

#[tokio::test]
async fn an_azure_conversation_is_edited_and_its_key_arrives() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::to(upstream.origin()).start().await;
    let mut client = abridge.connect().await;
    let target = "/openai/deployments/d/chat/completions?api-version=2024-10-21";
    client.send(post(target, &["api-key: k"], DANGLING)).await;
    let mut call = upstream.request().await;
    assert_eq!(call.head.target(), target);
    assert_eq!(call.head.get("api-key"), Some("k"));
    assert_patched(&call.bytes().await);
}

#[tokio::test]
async fn a_target_with_scheme_and_host_goes_to_the_upstream_all_the_same() {
    let mut upstream = Upstream::start().await;
    let abridge = Abridge::before(&upstream).await;
    let mut client = abridge.connect().await;
    client.send(request("GET", "http://elsewhere.test/v1/models?a=1", &[])).await;
    let call = upstream.request().await;
    assert_eq!(call.head.target(), "/v1/models?a=1");
    assert_eq!(call.head.get("host"), Some(&*upstream.address().to_string()));
}
