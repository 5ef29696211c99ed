//! Settings that become a header: none can hold another line, and who writes one is told where.

use crate::support::Setup;

#[tokio::test]
async fn a_setting_that_becomes_a_header_is_one_line_and_its_error_names_the_key() {
    let model = |key: &str, value: &str| {
        let [url, env] = ["base_url", "api_key_env"].map(|name| if name == key { value } else { "" });
        let url = if url.is_empty() { "http://localhost:1/v1" } else { url };
        let env = if env.is_empty() { String::new() } else { format!(", api_key_env = \"{env}\"") };
        format!("{{ base_url = \"{url}\", model = \"m\"{env} }}")
    };
    for end in ["\\r\\n", "\\n", "\\r", "\\u0000"] {
        let url = format!("http://localhost:1/v1{end}x-b: secret");
        let name = format!("KEY{end}secret");
        for (line, key) in [
            (format!("upstream.api_key_env = \"{name}\""), "upstream.api_key_env"),
            (format!("upstream.headers = {{ x-a = \"secret{end}x-b: 2\" }}"), "upstream.headers.x-a"),
            (format!("upstream.headers = {{ \"x-a{end}x-b\" = \"2\" }}"), "upstream.headers"),
            (format!("admin.token_env = \"{name}\""), "admin.token_env"),
            (format!("admin.hosts = [\"box{end}lan\"]"), "admin.hosts"),
            (format!("events.webhook = \"{url}\""), "events.webhook"),
            (format!("summarize.model = {}", model("base_url", &url)), "summarize.model.base_url"),
            (format!("summarize.model = {}", model("api_key_env", &name)), "summarize.model.api_key_env"),
            (format!("summarize.failover = [{}]", model("base_url", &url)), "summarize.failover.0.base_url"),
            (format!("summarize.failover = [{}]", model("api_key_env", &name)), "summarize.failover.0.api_key_env"),
        ] {
            let failed = Setup::to("http://localhost:1/v1").with(&line).fail().await;
            assert_eq!(failed.status.code(), Some(78), "{line}: {failed:?}");
            assert!(failed.stderr.contains(key), "{key} is not named: {failed:?}");
            assert_eq!(failed.stderr.lines().count(), 1, "{failed:?}");
        }
    }
    for end in ["\r\n", "\n", "\r"] {
        let failed = Setup::to(format!("http://localhost:1/v1{end}x-b: secret")).fail().await;
        assert_eq!(failed.status.code(), Some(78), "{failed:?}");
        assert!(failed.stderr.contains("upstream.url") && failed.stderr.lines().count() == 1, "{failed:?}");
    }
    for value in ["secret\r\nx-b: 2", "secret\nx-b: 2", "secret\rx-b: 2", "secret\u{85}", "secret\u{7f}"] {
        for (line, key) in [
            ("upstream.api_key_env = \"KEY\"".to_owned(), "upstream.api_key_env"),
            ("admin.token_env = \"KEY\"".to_owned(), "admin.token_env"),
            (format!("summarize.model = {}", model("api_key_env", "KEY")), "api_key_env of [summarize]"),
            (format!("summarize.failover = [{}]", model("api_key_env", "KEY")), "api_key_env of [summarize]"),
        ] {
            let failed = Setup::to("http://localhost:1/v1").with(&line).environment("KEY", value).fail().await;
            assert_eq!(failed.status.code(), Some(78), "{line}: {failed:?}");
            assert!(failed.stderr.contains(key) && failed.stderr.contains("KEY"), "{key} is not named: {failed:?}");
            assert!(!failed.stderr.contains("secret"), "{failed:?}");
        }
        let failed =
            Setup::to("http://localhost:1/v1").environment("https_proxy", format!("http://{value}x")).fail().await;
        assert_eq!(failed.status.code(), Some(78), "{failed:?}");
        assert!(failed.stderr.contains("https_proxy") && !failed.stderr.contains("secret"), "{failed:?}");
    }
}
