//! Tests of the layers, their order, and the error lines.

use std::fs;

use super::*;
use crate::edit::{clear_tool_results::Frontier, trigger::Keep};
use crate::planner::{EditName, Goal};
use crate::units::ByteSize;
use crate::upstream::HttpVersion;

mod clearing;

/// Loads a settings file with this text; the error is the line that is printed.
fn file(text: &str) -> Result<Config, String> {
    load(text, &[], Flags::default())
}

fn load(text: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    fs::write(&path, text).unwrap();
    let sources = Sources { file: Some(path), variables: variables.iter().copied().collect(), flags };
    let prefix = format!("{}/", folder.path().display());
    Config::load(&sources).map_err(|error| error.to_string().replace(&prefix, ""))
}

fn check(cases: &[(&str, &str)]) {
    for (text, line) in cases {
        assert_eq!(file(text).map(drop), Err((*line).to_owned()), "{text}");
    }
}

#[test]
fn unknown_keys_report_their_location_and_the_allowed_keys() {
    check(&[
        (
            "dry_run = true\n\n[server]\n  lisen = \"x\"\n",
            "proxy.toml:4:3: unknown key \"lisen\" in [server]; did you mean \"listen\"? allowed: listen, workers, max_connections, max_in_flight, max_body, max_buffered, header_timeout, body_timeout, min_body_rate, min_body_rate_after, write_timeout, grace",
        ),
        (
            "[sever]\nlisten = []\n",
            "proxy.toml:1:2: unknown key \"sever\" at the top level; did you mean \"server\"? allowed: preset, language, dry_run, log, server, admin, clients, limits, tls, upstream, upstreams, policies, experiment, store, policy, recall, patch_tool_calls, filter_tool_calls, truncate_tool_results, clear_tool_results, deduplicate_tool_results, summarize, request_prompt_cache, tools, handlers, reasoning, events, otel, inspect, second_try, compress, keep_alive, responses, tokens, models, prices",
        ),
        (
            "orphans = \"keep\"",
            "proxy.toml:1:1: unknown key \"orphans\" at the top level; allowed: preset, language, dry_run, log, server, admin, clients, limits, tls, upstream, upstreams, policies, experiment, store, policy, recall, patch_tool_calls, filter_tool_calls, truncate_tool_results, clear_tool_results, deduplicate_tool_results, summarize, request_prompt_cache, tools, handlers, reasoning, events, otel, inspect, second_try, compress, keep_alive, responses, tokens, models, prices",
        ),
        (
            "patch_tool_calls = { \"\\u001b[31m\\n\" = 1 }",
            "proxy.toml:1:22: unknown key \"\\u{1b}[31m\\n\" in [patch_tool_calls]; allowed: template, handler, orphans",
        ),
    ]);
}

#[test]
fn a_removed_setting_is_refused_with_what_holds_in_its_place() {
    for (text, said) in [
        (
            "rescue = {}",
            "1:1: unknown key \"rescue\" at the top level; it was removed: it is \"second_try\" now; allowed: ",
        ),
        ("tokens.memo = \"1MiB\"", "unknown key \"memo\" in [tokens]; it was removed: it is always 4 MiB; allowed: "),
        (
            "handlers.a = { url = \"http://h/\", mode = \"wait\" }",
            "in [handlers.a]; it was removed: a handler is asked",
        ),
        ("tools.\"b.c\" = { keep_last = 1 }", "it was removed: `clear_tool_results.keep` holds"),
        (
            "[[upstreams]]\nname = \"openai\"\nurl = \"http://h\"\nprobe = false",
            "it was removed: `upstream.probe` holds",
        ),
    ] {
        let error = file(text).map(drop).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn type_errors_name_the_expected_type_and_not_the_value() {
    check(&[
        (
            "events.webhook = \"hooks.example/s3cret\"",
            "proxy.toml:1:18: events.webhook: not a webhook's URL: write http:// or https:// and a host, without user, such as \"https://hooks.example/abridge\"",
        ),
        ("dry_run = \"yes\"", "proxy.toml:1:11: dry_run must be true or false, and is a string"),
        (
            "[server]\nworkers = \"2\"",
            "proxy.toml:2:11: server.workers must be a whole number, 0 or more, and is a string",
        ),
        (
            "[server]\nworkers = -1",
            "proxy.toml:2:11: server.workers must be a whole number, 0 or more, and is a negative number",
        ),
        (
            "[server]\nworkers = 1.5",
            "proxy.toml:2:11: server.workers must be a whole number, 0 or more, and is a number with a fraction",
        ),
        ("[server]\nworkers = 99999999999999999999", "proxy.toml:2:11: the number is too large"),
        (
            "[server]\nmax_body = 64",
            "proxy.toml:2:12: server.max_body must be a size such as \"64MiB\", and is a whole number",
        ),
        ("server = 1", "proxy.toml:1:10: server must be a table, and is a whole number"),
        ("[[server]]", "proxy.toml:1:1: server must be a table, and is a list"),
        ("[policy]\nedits = \"all\"", "proxy.toml:2:9: policy.edits must be a list, and is a string"),
        ("[upstream]\nhttp = 1.1", "proxy.toml:2:8: upstream.http must be a string; allowed: \"1.1\", \"2\""),
        (
            "[upstream.headers]\nx-key = [\"secret\"]",
            "proxy.toml:2:9: upstream.headers.x-key must be a string, and is a list",
        ),
        (
            "[server]\nlisten = 8787",
            "proxy.toml:2:10: server.listen must be an address such as \"127.0.0.1:8787\" or \"unix:/path\", or a list of them, and is a whole number",
        ),
    ]);
}

#[test]
fn range_errors_name_the_allowed_values() {
    check(&[
        ("language = \"de\"", "proxy.toml:1:12: language: \"de\" is not a choice; allowed: \"en\", \"zh\""),
        (
            "[log]\nlevel = \"wran\"",
            "proxy.toml:2:9: log.level: \"wran\" is not a choice; allowed: \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
        ),
        (
            "[policy]\nedits = [\"patch_tool_call\"]",
            "proxy.toml:2:10: policy.edits: \"patch_tool_call\" is not a choice; did you mean \"patch_tool_calls\"? allowed: \"patch_tool_calls\", \"filter_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\", \"deduplicate_tool_results\", \"summarize\", \"request_prompt_cache\"",
        ),
        (
            "[server]\nmax_body = \"64MB/s\"",
            "proxy.toml:2:12: server.max_body: \"64MB/s\" is not a size: write a whole number and a unit, one of B, KiB, MiB, GiB, kB, MB, GB, such as \"64MiB\"",
        ),
        (
            "[server]\ngrace = \"30\"",
            "proxy.toml:2:9: server.grace: \"30\" is not a time: write a whole number and a unit, one of ms, s, m, h, d, such as \"30s\"",
        ),
        (
            "[server]\nlisten = [\"127.0.0.1:1\", \"nowhere\"]",
            "proxy.toml:2:26: server.listen: \"nowhere\" is not an address: write \"127.0.0.1:8787\", \"[::1]:8787\", \"localhost:8787\" or \"unix:/path\"",
        ),
        ("[server]\nlisten = []", "proxy.toml:2:10: server.listen: the list is empty; allowed: at least one address"),
        (
            "[upstream]\nurl = \"api.openai.com\"",
            "proxy.toml:2:7: upstream.url: \"api.openai.com\" is not an upstream URL: write http:// or https://, a host and perhaps a path, without query or user, such as \"https://api.openai.com/v1\"",
        ),
        (
            "[upstream]\nurl = \"https://me:secret@host\"",
            "proxy.toml:2:7: upstream.url: the URL is not an upstream URL: write http:// or https://, a host and perhaps a path, without query or user, such as \"https://api.openai.com/v1\"",
        ),
        (
            "[upstream]\nheaders = { \"x key\" = \"v\" }",
            "proxy.toml:2:13: upstream.headers: \"x key\" is not a header name",
        ),
        (
            "[upstream]\nheaders = { x-key = \"a\\r\\nb\" }",
            "proxy.toml:2:21: upstream.headers.x-key: a header value holds visible ASCII and blanks alone, no line breaks",
        ),
    ]);
}

#[test]
fn contradictions_report_their_location() {
    check(&[
        ("[server]\nworkers = 1025", "proxy.toml:2:11: server.workers: 1025 is out of range; allowed: 0 to 1024"),
        (
            "[server]\nmax_in_flight = 0",
            "proxy.toml:2:17: server.max_in_flight: 0 is out of range; allowed: 1 to 10000000",
        ),
        ("[inspect]\nkeep = 10001", "proxy.toml:2:8: inspect.keep: 10001 is out of range; allowed: 0 to 10000"),
        (
            "[store]\nenabled = false\n[inspect]\nkeep = 1",
            "proxy.toml:4:8: inspect.keep: messages are kept in the store, and there is none; allowed: 0, or store.enabled = true",
        ),
        ("[server]\nmax_body = \"0B\"", "proxy.toml:2:12: server.max_body: 0B is out of range; allowed: 1B to 2GiB"),
        (
            "[server]\nmax_body = \"1GiB\"",
            "proxy.toml:2:12: server.max_body: a body of 1GiB (server.max_body) does not fit into 512MiB (server.max_buffered); allowed: max_buffered at least as large",
        ),
        (
            "[server]\nmax_buffered = \"0B\"",
            "proxy.toml:2:16: server.max_buffered: a body of 64MiB (server.max_body) does not fit into 0B (server.max_buffered); allowed: max_buffered at least as large",
        ),
        (
            "[server]\nheader_timeout = \"0s\"",
            "proxy.toml:2:18: server.header_timeout: 0ms is out of range; allowed: 1ms to 365d",
        ),
        ("[keep_alive]\nafter = \"5m\"", "proxy.toml:2:9: keep_alive.after: 5m is out of range; allowed: 1ms to 299s"),
        (
            "[upstream]\nidle_timeout = \"400d\"",
            "proxy.toml:2:16: upstream.idle_timeout: 400d is out of range; allowed: 1ms to 365d",
        ),
        (
            "[policy]\nedits = [\"patch_tool_calls\", \"patch_tool_calls\"]",
            "proxy.toml:2:9: policy.edits: \"patch_tool_calls\" is there twice; allowed: once",
        ),
        (
            "[tls]\ncert = \"c.pem\"",
            "proxy.toml:1:1: tls: \"key\" is missing or empty; allowed: both cert and key, or no [tls] at all",
        ),
        (
            "[tls]\ncert = \"\"\nkey = \"k.pem\"",
            "proxy.toml:2:8: tls.cert: \"cert\" is missing or empty; allowed: both cert and key, or no [tls] at all",
        ),
        (
            "[upstream]\nurl = \"http://localhost:8787/v1\"",
            "proxy.toml:2:7: upstream.url: http://localhost:8787/v1 is where abridge itself listens; allowed: another server",
        ),
        (
            "[upstream]\napi_key_env = \"sk-secret\"",
            "proxy.toml:2:15: upstream.api_key_env: not the name of an environment variable; allowed: letters, digits and _ (the name, never the key itself)",
        ),
        (
            "[upstream.headers]\nHost = \"x\"",
            "proxy.toml:2:8: upstream.headers.host: abridge sets this header itself; allowed: headers that no connection and no body depends on",
        ),
        (
            "[upstream]\napi_key_env = \"KEY\"\nheaders.authorization = \"x\"",
            "proxy.toml:3:25: upstream.headers.authorization: upstream.api_key_env sets this header; allowed: one of the two",
        ),
    ]);
}

#[test]
fn toml_syntax_errors_report_their_location() {
    check(&[
        ("[server\n", "proxy.toml:1:8: not valid TOML: unclosed table, expected `]`"),
        ("workers 1", "proxy.toml:1:9: not valid TOML: key with no value, expected `=`"),
        (
            "a = \"\u{1}\"",
            "proxy.toml:1:6: not valid TOML: invalid basic string, expected non-double-quote visible characters, `\\`",
        ),
        ("dry_run = true\ndry_run = true", "proxy.toml:2:1: not valid TOML: duplicate key"),
        (
            "[server]\nlisten = \"ä\" ü",
            "proxy.toml:2:14: not valid TOML: unexpected key or value, expected newline, `#`",
        ),
        ("key = {", "proxy.toml:1:8: not valid TOML: unclosed inline table, expected `}`"),
    ]);
}

#[test]
fn an_unreadable_file_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let line = |name: &str| {
        let sources = Sources { file: Some(folder.path().join(name)), ..Sources::default() };
        Config::load(&sources).unwrap_err().to_string().replace(&folder.path().display().to_string(), "F")
    };
    fs::write(folder.path().join("latin1.toml"), b"# a\n# \xe4\n").unwrap();
    fs::write(folder.path().join("long.toml"), vec![b'\n'; 1 << 21]).unwrap();
    assert_eq!(
        line("none.toml"),
        "F/none.toml: not found; name a file that is there with --config, or none to read proxy.toml of the working directory"
    );
    assert_eq!(line("latin1.toml"), "F/latin1.toml: cannot be read: invalid utf-8 sequence of 1 bytes from index 6");
    assert_eq!(line("long.toml"), "F/long.toml: cannot be read: it is longer than 1MiB");
    assert!(line("").starts_with("F/: cannot be read: "));
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let text = "language = \"zh\"\n[server]\nlisten = \"127.0.0.1:1\"\nworkers = 2\n[upstream]\nheaders = { X-A = \"file\", x-b = \"file\" }";
    let variables = [
        ("ABRIDGE__SERVER__WORKERS", "3"),
        ("ABRIDGE__SERVER__LISTEN", "127.0.0.1:2"),
        ("ABRIDGE__UPSTREAM__HEADERS", "{ x-a = \"variable\" }"),
        ("ABRIDGE__UPSTREAM__HEADERS__X-C", "variable"),
        ("ABRIDGE__TLS__CERT", "c.pem"),
        ("ABRIDGE__TLS__KEY", "k.pem"),
        ("ABRIDGE_CORPUS", "not a setting"),
    ];
    let flags = Flags { listen: vec!["127.0.0.1:3".into(), "unix:/s".into()], dry_run: true, ..Flags::default() };
    let config = load(text, &variables, flags).unwrap();

    assert_eq!(config.language, Language::Zh);
    assert_eq!(config.server.workers, 3);
    assert_eq!(config.server.listen.0.len(), 2);
    assert_eq!(config.server.listen.0[0].to_string(), "127.0.0.1:3");
    assert_eq!(config.server.max_body, ByteSize::mib(64));
    assert!(config.dry_run);
    assert_eq!(config.tls.unwrap().key.to_str(), Some("k.pem"));
    let headers: Vec<_> =
        config.upstream.headers.iter().map(|(name, value)| (name.0.as_str(), value.0.clone())).collect();
    let expected = [("x-a", "variable"), ("x-b", "file"), ("x-c", "variable")];
    assert_eq!(headers, expected.map(|(name, value)| (name, http::HeaderValue::from_static(value))));
}

#[test]
fn variables_for_keys_of_one_table_are_merged() {
    let text = "[clear_tool_results]\ntrigger = { fraction = 0.5 }";
    let name = |key: &str| format!("ABRIDGE__CLEAR_TOOL_RESULTS__{key}");
    let (tokens, messages) = (name("TRIGGER__TOKENS"), name("TRIGGER__MESSAGES"));
    let config = load(text, &[(&tokens, "5000"), (&messages, "7")], Flags::default()).unwrap();
    let trigger = serde_json::to_string(&config.clear_tool_results.trigger).unwrap();
    // Merged with each other, and not with the file.
    assert_eq!(trigger, r#"[{"tokens":5000,"messages":7}]"#);
    let (results, rounds) = (name("KEEP__RESULTS"), name("KEEP__ROUNDS"));
    let line = load("", &[(&results, "1"), (&rounds, "1")], Flags::default()).unwrap_err();
    assert!(line.contains("KEEP__RESULTS: exactly one key is needed; allowed: results, rounds"), "{line}");
}

#[test]
fn variables_are_parsed_as_toml_or_else_taken_as_text() {
    let variables = [
        ("ABRIDGE__DRY_RUN", "true"),
        ("ABRIDGE__UPSTREAM__HTTP", "2"),
        ("ABRIDGE__LANGUAGE", "\"zh\""),
        ("ABRIDGE__SERVER__LISTEN", "[\"127.0.0.1:1\", \"127.0.0.1:2\"]"),
        ("ABRIDGE__PATCH_TOOL_CALLS__TEMPLATE", "Ключ = \"x"),
    ];
    let config = load("", &variables, Flags::default()).unwrap();
    assert!(config.dry_run);
    assert_eq!(config.upstream.http, HttpVersion::Http2);
    assert_eq!(config.language, Language::Zh);
    assert_eq!(config.server.listen.0.len(), 2);
    assert_eq!(config.patch_tool_calls.template.as_deref(), Some("Ключ = \"x"));
}

#[test]
fn errors_in_variables_and_flags_name_the_variable_or_flag() {
    for ((name, value), line) in [
        (("ABRIDGE__SERVER__WORKERS", "two"), "server.workers must be a whole number, 0 or more, and is a string"),
        (("ABRIDGE__DRY_RUN", ""), "dry_run must be true or false, and is a string"),
        (("ABRIDGE__UPSTREAM__HEADERS", "{ x-key = \"secret"), "not valid TOML: unclosed inline table, expected `}`"),
        (("ABRIDGE__UPSTREAM__HEADERS", "secret"), "upstream.headers must be a table, and is a string"),
        (("ABRIDGE__SERVER", "1"), "server must be a table, and is a whole number"),
        (
            ("ABRIDGE__SERVER__MAX_BODY", "64"),
            "\"64\" is not a size: write a whole number and a unit, one of B, KiB, MiB, GiB, kB, MB, GB, such as \"64MiB\"",
        ),
        (("ABRIDGE__UPSTREAM__HTTP", "3"), "\"3\" is not a choice; allowed: \"1.1\", \"2\""),
    ] {
        assert_eq!(load("", &[(name, value)], Flags::default()).map(drop), Err(format!("{name}: {line}")));
    }
    let line = load("", &[("ABRIDGE__", "1")], Flags::default()).unwrap_err();
    assert!(line.starts_with("ABRIDGE__: unknown key \"\" at the top level; allowed: preset, language, "), "{line}");
    let flags = Flags { upstream: vec!["nowhere".into()], ..Flags::default() };
    let line = load("", &[], flags).unwrap_err();
    assert!(line.starts_with("--upstream: \"nowhere\" is not an upstream URL: write "), "{line}");
}

#[test]
fn an_error_is_reported_even_where_a_stronger_source_overrides_the_value() {
    let line = load("[server]\nworkers = \"x\"", &[("ABRIDGE__SERVER__WORKERS", "1")], Flags::default()).unwrap_err();
    assert_eq!(line, "proxy.toml:2:11: server.workers must be a whole number, 0 or more, and is a string");
    let flags = Flags { upstream: vec!["http://up".into()], ..Flags::default() };
    let line = load("", &[("ABRIDGE__UPSTREAM__URL", "nowhere")], flags).unwrap_err();
    assert!(line.starts_with("ABRIDGE__UPSTREAM__URL: \"nowhere\" is not an upstream URL"), "{line}");
}

#[test]
fn upstreams_are_printed_with_their_requests_and_without_secrets() {
    let text = "[[upstreams]]\nname = \"house\"\nurl = \"http://h\"\nheaders = { x-key = \"secret\" }\nwhen = { header = \"x-team: blue\", model = \"m*\" }";
    let flags = Flags { upstream: vec!["anthropic=http://a".into(), "house=http://i".into()], ..Flags::default() };
    let loaded = load(text, &[], flags).unwrap();
    let printed = loaded.to_toml().unwrap();
    assert!(!printed.contains("secret") && printed.contains("x-key = \"***\""), "{printed}");
    let again = file(&printed).unwrap().upstreams;
    assert_eq!(again.iter().map(|of| of.url.to_string()).collect::<Vec<_>>(), ["http://a/", "http://i/"]);
    let requests = |all: &[routes::Settings]| all.iter().map(routes::Settings::requests).collect::<Vec<_>>();
    assert_eq!(requests(&again), requests(&loaded.upstreams));
}

#[test]
fn a_preset_is_overridden_by_every_source() {
    let preset = |text: &str| file(text).unwrap();
    let eino = preset("preset = \"eino\"");
    assert_eq!(eino.clear_tool_results.trigger.0[0].tokens, Some(30_000));
    assert_eq!(eino.clear_tool_results.keep, Keep::Rounds(1));
    assert_eq!(eino.summarize.keep, Keep::Rounds(0));
    for other in ["langchain", "agno"] {
        let edits = preset(&format!("preset = \"{other}\"")).policy.edits;
        assert!(!edits.contains(&EditName::Summarize), "{other}");
    }
    let own = preset("preset = \"eino\"\n[clear_tool_results]\nkeep = { results = 7 }\ntrigger = { messages = 9 }");
    assert_eq!(own.clear_tool_results.keep, Keep::Results(7));
    let condition = &own.clear_tool_results.trigger.0[0];
    assert_eq!((own.clear_tool_results.trigger.0.len(), condition.tokens, condition.messages), (1, None, Some(9)));
    assert_eq!(own.clear_tool_results.frontier, Frontier::Sliding);
    let by_variable = load("", &[("ABRIDGE__PRESET", "agno"), ("ABRIDGE__POLICY__GOAL", "thrifty")], Flags::default());
    let by_variable = by_variable.unwrap();
    assert_eq!((by_variable.filter_tool_calls.max_tool_calls, by_variable.policy.goal), (Some(3), Goal::Thrifty));
    assert_eq!(preset("preset = \"langchain\"").clear_tool_results.placeholder.as_deref(), Some("[cleared]"));
    assert_eq!(preset("preset = \"default\""), Config::default());
    assert!(
        file("preset = \"crewai\"").unwrap_err().contains("allowed: \"default\", \"eino\", \"langchain\", \"agno\"")
    );
}

#[test]
fn printed_settings_read_back_except_secrets() {
    assert_eq!(file(&Config::default().to_toml().unwrap()), Ok(Config::default()));
    let config = file("[upstream]\nheaders = { x-key = \"sk-secret\" }\n[tls]\ncert = \"c\"\nkey = \"k\"").unwrap();
    let printed = config.to_toml().unwrap();
    assert!(printed.contains("x-key = \"***\""), "{printed}");
    assert!(!format!("{printed}{config:?}").contains("sk-secret"));
    assert_eq!(file(&printed).unwrap().to_toml().unwrap(), printed);
}

#[test]
fn invalid_summarize_settings_are_refused() {
    let table = |text: &str| file(&format!("[summarize]\n{text}")).map(drop);
    for (text, line) in [
        ("timeout = \"0s\"", "proxy.toml:2:11: summarize.timeout: 0ms is out of range; allowed: 1ms to 365d"),
        (
            "retry = { max_retries = 101 }",
            "proxy.toml:2:25: summarize.retry.max_retries: 101 is out of range; allowed: 0 to 100",
        ),
        ("max_tokens = 0", "proxy.toml:2:14: summarize.max_tokens: 0 is out of range; allowed: 1 or more"),
        (
            "trigger = { tokens = 1000 }\nkeep = { tokens = 1000 }",
            "proxy.toml:3:8: summarize.keep: 1000 tokens are all of a conversation of 1000 (summarize.trigger); allowed: fewer",
        ),
        (
            "keep = { fraction = 0.8 }",
            "proxy.toml:2:8: summarize.keep: the fraction is all of a conversation that reaches summarize.trigger; allowed: a smaller one",
        ),
        (
            "preserve_user_messages = { max_tokens = 160000 }",
            "proxy.toml:2:41: summarize.preserve_user_messages.max_tokens: as many as the 160000 of summarize.trigger; allowed: fewer",
        ),
        (
            "preserve_skills = { tool = \"\" }",
            "proxy.toml:2:28: summarize.preserve_skills.tool: empty; allowed: the name of a tool",
        ),
        (
            "model = { base_url = \"https://me:secret@h/v1\", model = \"m\" }",
            "proxy.toml:2:22: summarize.model.base_url: not an upstream URL: write http:// or https://, a host and perhaps a path, without query or user, such as \"https://api.openai.com/v1\"",
        ),
        (
            "[[summarize.failover]]\nbase_url = \"http://h\"\nmodel = \"m\"\n[[summarize.failover]]\nbase_url = \"http://h\"\nmodel = \" \"",
            "proxy.toml:7:9: summarize.failover.1.model: empty; allowed: the name of a model",
        ),
        (
            "model = { base_url = \"http://h\", model = \"m\", api_key_env = \"sk-1\" }",
            "proxy.toml:2:61: summarize.model.api_key_env: not the name of an environment variable; allowed: letters, digits and _ (the name, never the key itself)",
        ),
    ] {
        assert_eq!(table(text), Err(line.to_owned()), "{text}");
    }
}

const EXAMPLE: &str = include_str!("../../proxy.toml.example");

#[test]
fn texts_of_nothing_but_blanks_are_refused() {
    for (table, key) in [("clear_tool_results", "placeholder = ' '"), ("truncate_tool_results", "notice = \"\\n\"")] {
        let line = file(&format!("[{table}]\n{key}")).unwrap_err();
        assert!(line.starts_with("proxy.toml:2:") && line.contains("nothing but blanks"), "{line}");
    }
}

#[test]
fn the_example_is_the_defaults() {
    assert_eq!(file(EXAMPLE), Ok(Config::default()));
}

#[test]
fn the_example_has_every_key() {
    let uncommented = |line: &str| {
        let bare = line.strip_prefix("# ").filter(|bare| {
            bare.starts_with('[')
                || bare
                    .split_once(" = ")
                    .is_some_and(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        });
        bare.unwrap_or(line).to_owned() + "\n"
    };
    let complete: toml::Table = toml::from_str(&EXAMPLE.lines().map(uncommented).collect::<String>()).unwrap();
    // The error for an unknown key lists the known ones.
    let tables = complete
        .iter()
        .filter(|(name, value)| value.is_table() && !["tools", "handlers", "policies"].contains(&name.as_str()))
        .map(|(name, _)| name.as_str());
    for name in std::iter::once("").chain(tables) {
        let (unknown, table) = match name {
            "" => ("unknown_key = 1".to_owned(), &complete),
            name => (format!("[{name}]\nunknown_key = 1"), complete[name].as_table().unwrap()),
        };
        let line = file(&unknown).unwrap_err();
        let mut keys: Vec<_> = line.split_once("allowed: ").unwrap().1.split(", ").collect();
        keys.sort_unstable();
        let mut shown: Vec<_> = table.keys().map(String::as_str).collect();
        shown.sort_unstable();
        assert_eq!(shown, keys, "[{name}]");
    }
}
