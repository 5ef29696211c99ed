//! How failures of a call are retried, and what is said of a refusal.

use super::*;

fn retry(status: u16, text: &str, headers: &[(&'static str, &'static str)]) -> Retry {
    retry_with(&settings::Retry::default(), status, text, headers)
}

fn retry_with(settings: &settings::Retry, status: u16, text: &str, headers: &[(&'static str, &'static str)]) -> Retry {
    let status = StatusCode::from_u16(status).unwrap();
    let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    retry_after_status(status, retry_after(&headers), text.as_bytes(), settings)
}

#[test]
fn what_the_settings_list_is_retried_and_nothing_else() {
    let settings: settings::Retry = toml::from_str("on = [500, \"overloaded_error\"]").unwrap();
    let retry = |status, text| retry_with(&settings, status, text, &[]);
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error"}}"#;
    assert_eq!([retry(500, ""), retry(529, overloaded), retry(400, overloaded)], [Retry::Same(None); 3]);
    assert_eq!([retry(429, "slow down"), retry(529, ""), retry(503, "")], [Retry::Never; 3]);
    assert_eq!(retry(400, r#"{"error":{"code":"context_length_exceeded"}}"#), Retry::Shorter);
    let none: settings::Retry = toml::from_str("on = []").unwrap();
    assert_eq!(retry_with(&none, 500, "", &[]), Retry::Never);
}

#[test]
fn transient_errors_are_retried() {
    for status in [408, 409, 429, 500, 502, 503, 504, 529] {
        assert_eq!(retry(status, "context length", &[]), Retry::Same(None), "{status}");
    }
    for status in [201, 302, 400, 401, 403, 404, 422] {
        assert_eq!(retry(status, "no", &[]), Retry::Never, "{status}");
    }
    assert_eq!(retry(413, "<html>", &[]), Retry::Shorter);
}

#[test]
fn retry_after_is_honoured_unless_it_is_too_long() {
    let wait = |value| retry(429, "", &[("retry-after", value)]);
    assert_eq!(wait("7"), Retry::Same(Some(Duration::from_secs(7))));
    assert_eq!(wait("0.5"), Retry::Same(Some(Duration::from_millis(500))));
    assert_eq!(wait("30"), Retry::Same(Some(MAX_RETRY_AFTER)));
    assert_eq!(wait("31"), Retry::Never);
    for odd in ["-1", "nan", "1e300", "Fri, 31 Dec 1999 23:59:59 GMT", ""] {
        assert_eq!(wait(odd), Retry::Same(None), "{odd}");
    }
    let both = [("retry-after", "9"), ("retry-after-ms", "250")];
    assert_eq!(retry(503, "", &both), Retry::Same(Some(Duration::from_millis(250))));
}

#[test]
fn the_reason_for_a_refusal_decides_the_retry() {
    let overflow = r#"{"error":{"code":"context_length_exceeded"}}"#;
    let tools = r#"{"error":{"message":"Tools are not supported by this model"}}"#;
    let sequence = r#"{"error":{"message":"Conversation roles must alternate"}}"#;
    for status in [400, 413, 422] {
        assert_eq!(retry(status, overflow, &[]), Retry::Shorter, "{status}");
        assert_eq!(retry(status, tools, &[]), Retry::Plain, "{status}");
        assert_eq!(retry(status, sequence, &[]), Retry::Plain, "{status}");
        for unknown in [
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model."}}"#,
            r#"{"error":{"message":"`max_tokens` must be greater than `thinking.budget_tokens`"}}"#,
            r#"[{"error":{"message":"Invalid JSON payload received. Unknown name \"stream_options\""}}]"#,
        ] {
            assert_eq!(retry(status, unknown, &[]), Retry::Plain, "{status}");
        }
        for other in ["{}", r#"{"error":{"message":"no credits are left"}}"#] {
            assert_eq!(retry(status, other, &[]), Retry::Never, "{status}");
        }
    }
    assert_eq!(retry(401, overflow, &[]), Retry::Never);
    assert_eq!(retry(500, overflow, &[]), Retry::Same(None));
}

fn said(body: &str) -> String {
    let sent = [
        r#"{"model":"m","messages":[{"role":"user","content":"the launch code is 4711"}]}"#,
        "Bearer sk-0123456789abcdef",
    ];
    words_of(body.as_bytes(), &sent.map(Bytes::from))
}

#[test]
fn the_sentence_of_a_refusal_is_found_wherever_servers_put_it() {
    for body in [
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"no such beta"}}"#,
        r#"{"error":"no such beta"}"#,
        r#"{"message":"no such beta"}"#,
        r#"{"detail":"no such beta"}"#,
        r#"{"error":{"error":{"message":"no such beta"}}}"#,
        r#"[{"error":{"code":400,"message":"no such beta"}}]"#,
        r#"{"type":"response.failed","response":{"error":{"code":"x","message":"no such beta"}}}"#,
        r#"{"object":"error","message":{"detail":[{"loc":["body"],"msg":"no such beta"}]}}"#,
    ] {
        assert_eq!(said(body), ": no such beta", "{body}");
    }
    for body in ["", "<html>", "[]", r#"{"error":{"message":7}}"#, r#"{"detail":[{"input":"the launch code"}]}"#] {
        assert_eq!(said(body), "", "{body}");
    }
}

#[test]
fn what_was_sent_is_left_out_and_the_rest_is_bounded_and_on_one_line() {
    let body = r#"{"error":{"message":"invalid: 'the launch code is 4711', key sk-0123456789abcdef"}}"#;
    let words = said(body);
    assert!(words.starts_with(": invalid: '\u{2026}'") && words.contains("key"), "{words}");
    assert!(!words.contains("4711") && !words.contains("launch") && !words.contains("0123456789"), "{words}");
    assert_eq!(said(r#"{"message":"a\n\u001b[31mb\u202e"}"#), r": a\u{a}\u{1b}[31mb\u{202e}");
    let long = format!(r#"{{"message":"{}"}}"#, "ab ".repeat(1000));
    assert_eq!(said(&long).chars().count(), MAX_CHARS + 2);
}
