//! Clients by name, with variables and settings of a user.

use super::*;

const URL: &str = "http://127.0.0.1:9";

/// The client of a command, in a home with these files, which its variables name.
fn client(command: &str, variables: &[(&str, &str)], files: &[(&str, &str)]) -> Client {
    let home = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = home.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let home = ("HOME", home.path().to_str().unwrap());
    let variables: Variables = variables.iter().copied().chain([home]).collect();
    Client::of(&command.split(' ').map(OsString::from).collect::<Vec<_>>(), &variables, &Config::default()).unwrap()
}

fn upstreams(client: &Client) -> Vec<String> {
    client.upstreams(&Config::default())
}

#[test]
fn a_client_without_settings_goes_to_the_makers_of_the_apis() {
    let client = client("/usr/bin/agent", &[], &[]);
    assert_eq!(upstreams(&client), [&format!("chatgpt={CHATGPT}"), "anthropic=https://api.anthropic.com"]);
    let expected = [
        ("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
        ("OPENAI_API_BASE", "http://127.0.0.1:9/v1"),
        ("ANTHROPIC_BASE_URL", URL),
    ];
    assert_eq!(client.variables(URL), expected.map(|(name, value)| (name, value.to_owned())));
    assert_eq!(client.arguments(URL), [""; 0]);
}

#[test]
fn a_client_keeps_the_paths_of_its_base_urls() {
    let variables = [("OPENAI_API_BASE", "https://gate/api/v1/"), ("ANTHROPIC_BASE_URL", "https://gate/anthropic")];
    let client = client("aider", &variables, &[]);
    assert_eq!(upstreams(&client), ["https://gate/api/v1/", "anthropic=https://gate/anthropic"]);
    let values: Vec<_> = client.variables(URL).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["http://127.0.0.1:9/api/v1", "http://127.0.0.1:9/api/v1", "http://127.0.0.1:9/anthropic"]);
}

#[test]
fn codex_has_an_argument_and_its_settings_say_where_requests_go() {
    let with = |settings: &str| {
        client("codex", &[("OPENAI_BASE_URL", "http://not-read")], &[(".codex/config.toml", settings)])
    };
    let plain = with("model = \"gpt-5\" # no URL");
    assert_eq!(plain.arguments(URL), ["-c", "openai_base_url=\"http://127.0.0.1:9/v1\""]);
    assert_eq!(upstreams(&plain).first().unwrap(), &format!("chatgpt={CHATGPT}"));
    let own = with("openai_base_url = 'https://gate/v1'");
    assert_eq!(own.arguments(URL), ["-c", "openai_base_url=\"http://127.0.0.1:9/v1\""]);
    assert_eq!(upstreams(&own).first().unwrap(), "https://gate/v1");
    let provider = with("model_provider = 'mine'\n[model_providers.mine]\nbase_url = 'https://gate/x'\n");
    assert_eq!(provider.arguments(URL), ["-c", "model_providers.mine.base_url=\"http://127.0.0.1:9/x\""]);
    assert_eq!(upstreams(&provider).first().unwrap(), "https://gate/x");
    assert_eq!(with("model_provider = 'ollama'").arguments(URL), [""; 0]);
    assert_eq!(with("not TOML").arguments(URL).len(), 2);
}

#[test]
fn a_profile_of_codex_says_where_requests_go() {
    let files = [
        (
            ".codex/config.toml",
            "openai_base_url = 'https://gate/v1'\n[model_providers.mine]\nbase_url = 'https://mine/x'\n",
        ),
        (".codex/work.config.toml", "model_provider = 'mine'\n[model_providers.mine]\nname = 'Mine'\n"),
        (".codex/.config.toml", "openai_base_url = 'https://nameless/v1'\n"),
        (".codex/eu.config.toml", "openai_base_url = 'https://eu/v1'\n"),
    ];
    for (command, upstream, key) in [
        ("codex exec --profile work go", "https://mine/x", "model_providers.mine.base_url"),
        ("codex -p eu", "https://eu/v1", "openai_base_url"),
        ("codex -peu", "https://eu/v1", "openai_base_url"),
        ("codex --profile=", "https://gate/v1", "openai_base_url"),
        ("codex --profile=eu", "https://eu/v1", "openai_base_url"),
        ("codex --profile ../work", "https://gate/v1", "openai_base_url"),
        ("codex exec -- --profile work", "https://gate/v1", "openai_base_url"),
        ("codex --profile", "https://gate/v1", "openai_base_url"),
    ] {
        let client = client(command, &[], &files);
        assert_eq!(upstreams(&client).first().unwrap(), upstream, "{command}");
        assert!(client.arguments(URL)[1].starts_with(&format!("{key}=")), "{command}");
    }
}

#[test]
fn claude_code_has_an_argument_where_its_settings_name_a_base_url() {
    let named = r#"{"env":{"ANTHROPIC_BASE_URL":"https://gate/a","X":1},"model":"opus"}"#;
    let client_with =
        |settings| client("claude", &[("ANTHROPIC_BASE_URL", "https://other")], &[(".claude/settings.json", settings)]);
    let client = client_with(named);
    let settings = r#"{"env":{"ANTHROPIC_BASE_URL":"http://127.0.0.1:9/a"}}"#;
    assert_eq!(client.arguments(URL), ["--settings", settings]);
    assert_eq!(upstreams(&client).last().unwrap(), "anthropic=https://gate/a");
    let client = client_with("{}");
    assert_eq!(client.arguments(URL), [""; 0]);
    assert_eq!(upstreams(&client).last().unwrap(), "anthropic=https://other/");
}

#[test]
fn claude_code_keeps_the_host_that_it_asks_for() {
    let bedrock = client("claude", &[("CLAUDE_CODE_USE_BEDROCK", "1"), ("AWS_DEFAULT_REGION", "eu-west-1")], &[]);
    assert_eq!(upstreams(&bedrock).last().unwrap(), "anthropic=https://bedrock-runtime.eu-west-1.amazonaws.com/");
    assert_eq!(bedrock.variables(URL).last().unwrap(), &("ANTHROPIC_BEDROCK_BASE_URL", URL.to_owned()));
    for (region, expected) in [
        ("", "https://us-east5-aiplatform.googleapis.com/v1"),
        ("us-west1", "https://us-west1-aiplatform.googleapis.com/v1"),
        ("global", "https://aiplatform.googleapis.com/v1"),
        ("eu", "https://aiplatform.eu.rep.googleapis.com/v1"),
    ] {
        let settings = format!(r#"{{"env":{{"CLAUDE_CODE_USE_VERTEX":"1","CLOUD_ML_REGION":"{region}"}}}}"#);
        let vertex = client("claude", &[], &[(".claude/settings.json", &settings)]);
        assert_eq!(upstreams(&vertex).last().unwrap(), &format!("anthropic={expected}"));
        assert_eq!(vertex.variables(URL).last().unwrap(), &("ANTHROPIC_VERTEX_BASE_URL", format!("{URL}/v1")));
    }
    let foundry = [("CLAUDE_CODE_USE_FOUNDRY", "1"), ("ANTHROPIC_FOUNDRY_BASE_URL", "https://r.example/anthropic")];
    let foundry = client("claude", &foundry, &[]);
    assert_eq!(upstreams(&foundry).last().unwrap(), "anthropic=https://r.example/anthropic");
    assert_eq!(foundry.variables(URL).last().unwrap(), &("ANTHROPIC_FOUNDRY_BASE_URL", format!("{URL}/anthropic")));
    // Claude Code refuses a base URL beside a resource.
    let resource = [("CLAUDE_CODE_USE_FOUNDRY", "1"), ("ANTHROPIC_FOUNDRY_RESOURCE", "ours")];
    let settings = r#"{"env":{"ANTHROPIC_FOUNDRY_RESOURCE":"theirs"}}"#;
    for (files, expected) in [(&[][..], "ours"), (&[(".claude/settings.json", settings)][..], "theirs")] {
        let foundry = client("claude", &resource, files);
        let expected = format!("anthropic=https://{expected}.services.ai.azure.com/anthropic");
        assert_eq!(upstreams(&foundry).last().unwrap(), &expected);
        assert!(foundry.variables(URL).contains(&("ANTHROPIC_FOUNDRY_RESOURCE", String::new())));
        let env =
            r#"{"env":{"ANTHROPIC_FOUNDRY_RESOURCE":"","ANTHROPIC_FOUNDRY_BASE_URL":"http://127.0.0.1:9/anthropic"}}"#;
        let arguments: &[&str] = if files.is_empty() { &[] } else { &["--settings", env] };
        assert_eq!(foundry.arguments(URL), arguments);
    }
}

#[test]
fn the_path_of_a_host_stays_where_the_settings_name_the_upstream() {
    let home = tempfile::tempdir().unwrap();
    let variables = [("CLAUDE_CODE_USE_FOUNDRY", "1"), ("HOME", home.path().to_str().unwrap())];
    let mut config = Config::default();
    config.upstream.url = "https://ours.services.ai.azure.com/anthropic".parse().unwrap();
    let route = toml::from_str("name = 'anthropic'\nurl = 'https://ours.services.ai.azure.com/anthropic'").unwrap();
    config.upstreams = vec![route];
    let foundry = Client::of(&["claude".into()], &variables.into_iter().collect(), &config).unwrap();
    assert_eq!(foundry.upstreams(&config), [""; 0]);
    assert_eq!(foundry.variables(URL).last().unwrap(), &("ANTHROPIC_FOUNDRY_BASE_URL", format!("{URL}/anthropic")));
}

#[test]
fn opencode_and_goose_have_base_urls_of_their_own_form() {
    let opencode = client("opencode", &[], &[]).variables(URL);
    assert_eq!(opencode.last().unwrap(), &("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/v1".to_owned()));
    let goose = client("goose", &[("OPENAI_HOST", "https://gate")], &[]);
    assert_eq!(goose.variables(URL), [("OPENAI_HOST", URL.to_owned()), ("ANTHROPIC_HOST", URL.to_owned())]);
    assert_eq!(upstreams(&goose).first().unwrap(), "https://gate/");
}

#[test]
fn upstreams_of_the_settings_win() {
    let mut config = Config::default();
    config.upstream.url = "http://mine/v1".parse().unwrap();
    let variables = [("OPENAI_BASE_URL", "http://theirs/x"), ("ANTHROPIC_BASE_URL", "http://theirs")];
    let client = Client::of(&["agent".into()], &variables.into_iter().collect(), &config).unwrap();
    assert_eq!(client.variables(URL).first().unwrap().1, "http://127.0.0.1:9/v1");
    assert_eq!(client.upstreams(&config), ["anthropic=http://theirs/"]);
}
