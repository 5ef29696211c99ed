//! Tests of which requests go where.

use super::*;
use crate::units::Period;

fn holds(when: &str, path: &str, headers: &[(&'static str, &'static str)], model: Option<&str>) -> bool {
    #[derive(Deserialize)]
    struct Table {
        when: RequestMatch,
    }
    let table: Table = toml::from_str(&format!("when = {when}")).unwrap();
    let field = |(name, value): &(&'static str, &'static str)| (name.parse().unwrap(), value.parse().unwrap());
    let headers: HeaderMap = headers.iter().map(field).collect();
    table.when.holds(&RequestFacts { path, headers: &headers, model })
}

#[test]
fn a_path_stands_for_whole_segments() {
    for (path, expected) in [("/groq", true), ("/groq/v1/models", true), ("/groqs", false), ("/v1/groq", false)] {
        assert_eq!(holds("{ path = \"/groq\" }", path, &[], None), expected, "{path}");
        assert_eq!(holds("{ path = \"/groq/\" }", path, &[], None), expected, "{path}");
    }
    assert!(holds("{ path = \"/\" }", "/v1/models", &[], None));
}

#[test]
fn a_dialect_stands_for_its_path_and_what_is_below_it() {
    let version = [("anthropic-version", "2023-06-01")];
    for (path, headers, dialect) in [
        ("/v1/chat/completions", &[][..], "chat_completions"),
        ("/openai/deployments/x/chat/completions", &[], "chat_completions"),
        ("/v1/responses/resp_1/cancel", &[], "responses"),
        ("/v1/messages", &[], "messages"),
        ("/anthropic/v1/messages/count_tokens", &[], "messages"),
        ("/v1/models", &version, "messages"),
        ("/v1/chat/completions", &version, "chat_completions"),
    ] {
        for name in ["chat_completions", "responses", "messages"] {
            let when = format!("{{ dialect = \"{name}\" }}");
            assert_eq!(holds(&when, path, headers, None), name == dialect, "{path} {name}");
        }
    }
    for path in ["/v1/threads/t/messages", "/v1/messages2", "/v1/models"] {
        assert!(!holds("{ dialect = \"messages\" }", path, &[], None), "{path}");
    }
}

#[test]
fn all_keys_of_a_condition_hold_and_one_condition_of_a_list() {
    let both = "{ model = \"claude-*\", header = \"x-team: blue\" }";
    let blue = [("x-team", "blue")];
    assert!(holds(both, "/", &blue, Some("Claude-Opus-5")));
    assert!(!holds(both, "/", &[("x-team", "red")], Some("claude-opus-5")));
    assert!(!holds(both, "/", &blue, Some("gpt-5")));
    assert!(!holds(both, "/", &blue, None), "a model that is not known");
    let either = "[{ model = \"claude-*\" }, { header = \"x-team\" }]";
    assert!(holds(either, "/", &[("x-team", "red")], None));
    assert!(!holds(either, "/", &[], Some("gpt-5")));
}

#[test]
fn a_name_stands_for_the_requests_of_its_dialect() {
    let said = |name| RequestMatch::of_name(name).map(|requests| serde_json::to_string(&requests).unwrap());
    let [path, of_model] = [r#""path":null,"#, r#","model":null,"header":null"#];
    let messages = format!(r#"{{{path}"dialect":"messages"{of_model}}}"#);
    let hello = format!(r#"{{"path":"/api/hello","dialect":null{of_model}}}"#);
    assert_eq!(said("anthropic"), Some(format!("[{messages},{hello}]")));
    assert_eq!(said("house"), None);
}

#[test]
fn the_key_of_the_default_upstream_is_not_taken_over() {
    let settings: Settings = toml::from_str("name = \"anthropic\"\nurl = \"http://h\"").unwrap();
    let default = super::super::Settings {
        api_key_env: Some("OPENAI_API_KEY".to_owned()),
        headers: toml::from_str("x-gateway-key = \"secret\"").unwrap(),
        idle_timeout: Period::secs(7),
        ..super::super::Settings::default()
    };
    let over = settings.over(&default);
    assert_eq!((over.api_key_env, over.headers.len(), over.idle_timeout), (None, 0, Period::secs(7)));
    assert_eq!(over.api_key_header, KeyHeader::XApiKey);
}
