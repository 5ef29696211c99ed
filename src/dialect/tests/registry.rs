//! Which dialect a path and a body are in.

use crate::dialect::*;
use crate::string_index::PathFacts;

#[test]
fn chat_completions_under_any_prefix() {
    for path in ["/v1/chat/completions", "/chat/completions", "/openai/deployments/x/chat/completions"] {
        assert_eq!(for_path(path).map(Dialect::name), Some("chat_completions"), "{path}");
    }
    for path in ["/v1/chat/completions/", "/v1/completions", "/v1/embeddings", "/v1/chat/completions/x", "", "/"] {
        assert!(for_path(path).is_none(), "{path}");
    }
    assert!(for_counting_path("/v1/chat/completions/input_tokens").is_none());
}

#[test]
fn messages_under_any_prefix_but_an_id() {
    let bases = ["/v1", "/anthropic/v1", "/api/v1", "/anthropic", "", "/kimi", "/v1/account/gateway/anthropic"];
    for base in bases {
        let path = format!("{base}/messages");
        assert_eq!(for_path(&path).map(Dialect::name), Some("messages"), "{path}");
        assert_eq!(for_path(&path).and_then(|dialect| dialect.base_path(&path)), Some(base));
        let counting = format!("{path}/count_tokens");
        assert_eq!(for_counting_path(&counting).map(Dialect::name), Some("messages"), "{counting}");
        for other in ["/count_tokens", "/batches", "/batches/b/results", "/"] {
            let other = path.clone() + other;
            assert!(for_path(&other).is_none(), "{other}");
        }
        assert!(for_counting_path(&path).is_none());
    }
    assert_eq!(for_path("/x/v1/messages").and_then(|dialect| dialect.base_path("/x/v1/messages")), Some("/x/v1"));
    let others = [
        "/v1/messages/",
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/threads/t/messages",
        "/openai/threads/t/messages",
        "/v1/chat/completions/c/messages",
        "/v1/conversations/c/messages",
        "/xmessages",
    ];
    for path in others {
        assert!(for_path(path).is_none(), "{path}");
    }
}

#[test]
fn messages_at_vertex_ai_and_bedrock() {
    let vertex = "/v1/projects/p/locations/global/publishers/anthropic/models/";
    for (path, model, unframed) in [
        (format!("{vertex}claude-opus-4-5@20251101:rawPredict"), "claude-opus-4-5@20251101", None),
        (format!("{vertex}claude-opus-4-5%4020251101:streamRawPredict"), "claude-opus-4-5@20251101", None),
        ("/model/eu.anthropic.claude-haiku-4-5-v1:0/invoke".to_owned(), "eu.anthropic.claude-haiku-4-5-v1:0", None),
        (
            "/bedrock/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Aapplication-inference-profile%2Fx/invoke-with-response-stream".to_owned(),
            "arn:aws:bedrock:eu-west-1:1:application-inference-profile/x",
            Some("/bedrock/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Aapplication-inference-profile%2Fx/invoke"),
        ),
    ] {
        let dialect = for_path(&path).unwrap();
        let facts = PathFacts { model: Some(model.into()), is_framed: unframed.is_some() };
        assert_eq!((dialect.name(), dialect.path_facts(&path), dialect.unframed(&path)), ("messages", facts, unframed));
    }
    let counting = format!("{vertex}count-tokens:rawPredict");
    assert!(for_path(&counting).is_none());
    assert_eq!(for_counting_path(&counting).map(Dialect::name), Some("messages"));
    let gemini = vertex.replace("anthropic", "google") + "gemini-3-pro:streamGenerateContent";
    assert_eq!(for_path(&gemini).map(Dialect::name), Some("gemini"));
    assert_eq!(for_counting_path("/v1beta/models/m:countTokens").map(Dialect::name), Some("gemini"));
    for other in ["/model/meta.llama3-70b-instruct-v1:0/invoke", "/model/x/invoke", "/model/anthropic.claude/converse"]
    {
        assert!(for_path(other).is_none(), "{other}");
    }
    let azure = "/openai/deployments/our%20gpt/chat/completions";
    assert_eq!(for_path(azure).unwrap().path_facts(azure).model.as_deref(), Some("our gpt"));
    assert_eq!(for_path("/v1/messages").unwrap().path_facts("/v1/messages"), PathFacts::default());
}

#[test]
fn responses_under_any_prefix() {
    for path in ["/v1/responses", "/responses", "/backend-api/codex/responses", "/openai/v1/responses"] {
        assert_eq!(for_path(path).map(Dialect::name), Some("responses"), "{path}");
    }
    for path in ["/v1/responses/compact", "/v1/responses/input_tokens", "/v1/responses/resp_1", "/v1/responses/"] {
        assert!(for_path(path).is_none(), "{path}");
    }
}

#[test]
fn a_body_says_what_it_is() {
    for body in [r#"{"model":"m","input":[]}"#, r#" {"input":"x"}"#, r#"{"input":{}}"#] {
        assert_eq!(of_body(body.as_bytes()).name(), "responses", "{body}");
    }
    assert_eq!(of_body(br#"{"contents":[],"tools":[]}"#).name(), "gemini");
    for body in
        [r#"{"messages":[]}"#, r#"{"input":1,"messages":[]}"#, r#"{"x":{"input":1}}"#, "{}", "", "[]", "{\"input\""]
    {
        assert_eq!(of_body(body.as_bytes()).name(), "chat_completions", "{body}");
    }
}

#[test]
fn blocks_say_that_a_body_is_in_messages() {
    for body in [
        r#"{"messages":[],"system":"x"}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"tool_result"}]}]}"#,
        r#"{"messages":[],"tools":[{"name":"f","input_schema":{}}]}"#,
    ] {
        assert_eq!(of_body(body.as_bytes()).name(), "messages", "{body}");
    }
    let quoted = r#"{"messages":[{"role":"user","content":"{\"type\":\"tool_use\"}"}]}"#;
    assert_eq!(of_body(quoted.as_bytes()).name(), "chat_completions");
}

#[test]
fn each_dialect_has_a_name_and_a_number_of_its_own() {
    for (n, one) in ALL.into_iter().enumerate() {
        for other in ALL.into_iter().skip(n + 1) {
            assert!(one.name() != other.name() && one.facts().tag != other.facts().tag);
        }
        assert!(for_path(one.path()).is_some_and(|found| found.name() == one.name()));
    }
}
