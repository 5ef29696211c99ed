//! `request_prompt_cache`: asks Anthropic's API for its automatic prompt cache where a client marks nothing.
//!
//! # What it does
//! Adds `"cache_control": {"type": "ephemeral"}` at the top of the body. The API then writes the longest prefix that it can to the
//! cache, and each request reads what the request before has written. Without a mark nothing is cached, and each request of an
//! agent's loop pays for all of its history.
//!
//! # When it acts
//! Where the dialect is Messages, except at Bedrock's `invoke`, or Chat Completions with a model `anthropic/…`, the upstream is
//! one of `hosts`, the request has tools or an answer of the model, 4,096 bytes or more, and no mark for the prompt cache
//! anywhere. A single question would pay for a cache entry that no request reads.
//!
//! # What the model sees
//! Nothing: the mark is not part of the prompt.
//!
//! # What it never touches
//! Anything else. If the client marks something itself, nothing is added.

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::Edit;
use crate::{draft::Draft, tokens::models::Pattern};

/// `[request_prompt_cache]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The hosts of the upstreams that take the mark, by name or pattern: in Anthropic Messages, and in Chat Completions for
    /// models `anthropic/…`, as `openrouter.ai` does.
    #[default(vec![Pattern::new("api.anthropic.com")])]
    pub hosts: Vec<Pattern>,
}

/// The edit.
#[derive(Debug)]
pub struct RequestPromptCache {
    is_on: bool,
}

/// No model caches a shorter prompt, in bytes: the least is 1,024 tokens.
const LEAST_BYTES: usize = 4096;

impl RequestPromptCache {
    /// The edit for the upstream of this host.
    pub fn new(settings: &Settings, upstream: &str) -> Self {
        Self { is_on: settings.hosts.iter().any(|host| host.fits(upstream)) }
    }
}

impl Edit for RequestPromptCache {
    fn apply(&self, draft: &mut Draft<'_>) {
        if self.is_on && draft.body.len() >= LEAST_BYTES {
            draft.request_prompt_cache();
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_types, reason = "bodies are written here")]

    use bytes::Bytes;
    use serde_json::{Value, json};

    use crate::{dialect, replay::planner_from_toml, span::splice};

    fn sent(upstream: &str, path: &str, body: &Value) -> String {
        let planner =
            planner_from_toml(&format!("upstream = '{upstream}'\npolicy.edits = ['request_prompt_cache']")).unwrap();
        let bytes = Bytes::from(format!(" {body}"));
        let plan = planner.plan(dialect::for_path(path).unwrap(), &bytes).unwrap();
        let sent = splice(&bytes, &plan.splices).concat();
        assert_eq!(plan.report.requests_cache, sent != bytes);
        String::from_utf8(sent).unwrap()
    }

    #[test]
    fn a_mark_is_added_where_an_agent_sends_none() {
        const MARK: &str = r#" {"cache_control":{"type":"ephemeral"},"#;
        let long = "word ".repeat(1000);
        let ask = json!({"role": "user", "content": long});
        let tools = json!([{"name": "t", "input_schema": {}}]);
        let with_tools = json!({"model": "m", "messages": [ask], "tools": tools});
        let answered = json!({"model": "m", "messages": [ask, {"role": "assistant", "content": "Yes."}, ask]});
        let host = "api.anthropic.com";
        for body in [&with_tools, &answered] {
            let edited = sent(host, "/v1/messages", body);
            assert_eq!(edited, body.to_string().replacen('{', MARK, 1));
        }
        let marked =
            json!({"model": "m", "messages": [ask], "tools": [{"name": "t", "cache_control": {"type": "ephemeral"}}]});
        let short = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": tools});
        let question = json!({"model": "m", "messages": [ask]});
        for body in [&marked, &short, &question] {
            assert_eq!(sent(host, "/v1/messages", body), format!(" {body}"));
        }
        assert_eq!(sent("example.com", "/v1/messages", &with_tools), format!(" {with_tools}"));
        // Vertex AI takes the mark, and Bedrock's `invoke` does not.
        for (version, path, is_marked) in [
            ("vertex-2023-10-16", "/v1/projects/p/locations/global/publishers/anthropic/models/m:rawPredict", true),
            ("bedrock-2023-05-31", "/model/anthropic.m/invoke", false),
        ] {
            let body = json!({"anthropic_version": version, "messages": [ask], "tools": tools});
            let edited = sent(host, path, &body);
            assert_eq!(edited, body.to_string().replacen('{', if is_marked { MARK } else { " {" }, 1), "{version}");
        }
        for (model, is_marked) in
            [("anthropic/claude-opus-5", true), ("claude-opus-5", false), ("openai/gpt-5.5", false)]
        {
            let body = json!({"model": model, "messages": [ask], "tools": tools});
            let edited = sent(host, "/v1/chat/completions", &body);
            assert_eq!(edited, body.to_string().replacen('{', if is_marked { MARK } else { " {" }, 1), "{model}");
        }
    }
}
