//! Tests of the access rules and of the names of this machine.

use super::*;

const TOKEN: &str = "a-token-of-operators";

fn request(path: &str, fields: &[(&'static str, &'static str)]) -> Request<()> {
    let mut request = Request::get(path).body(()).unwrap();
    for (name, value) in fields {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    request
}

fn connection(listener_role: ListenerRole) -> ConnectionInfo {
    ConnectionInfo { peer: None, listener_role, certificate: None, id: 0 }
}

fn checked(
    token: Option<&str>,
    listener_role: ListenerRole,
    path: &str,
    fields: &[(&'static str, &'static str)],
) -> Result<(), AccessError> {
    Access::new(token, ["Box.LAN", "[fd00::1]"], None).check(&request(path, fields), connection(listener_role))
}

#[test]
fn what_is_not_in_the_table_is_for_operators() {
    for path in ["/abridge/status", "/abridge/x", "/abridge/recall/", "/abridge/healthz/", "/abridge//", "/abridge/%2e"]
    {
        assert_eq!(path_class(path), PathClass::Operators, "{path}");
    }
    for (path, is) in [
        ("/abridge/healthz", PathClass::Open),
        ("/abridge/recall/x", PathClass::Callers),
        ("/abridge/summarize/v1/chat/completions", PathClass::Paid),
        ("/abridge/", PathClass::Shell),
    ] {
        assert_eq!(path_class(path), is, "{path}");
    }
}

#[test]
fn other_host_names_are_refused_on_loopback_addresses() {
    let listener_role = ListenerRole::Clients(Exposure::Loopback);
    for host in [
        "localhost",
        "LocalHost:8787",
        "localhost.",
        "localhost.:8787",
        "127.0.0.1:8787",
        "127.9.9.9",
        "[::1]",
        "[::1]:8787",
        "[::ffff:127.0.0.1]:1",
        "box.lan",
        "BOX.lan.:99",
        "[fd00::1]:8787",
    ] {
        assert_eq!(checked(None, listener_role, "/abridge/metrics", &[("host", host)]), Ok(()), "{host}");
    }
    for host in [
        "",
        "evil.example",
        "evil.example:8787",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "localhost@evil.example",
        "localhost:8787:x",
        "10.0.0.1",
        "0.0.0.0:8787",
        "[::]",
        "[::2]:8787",
        "[::ffff:10.0.0.1]",
        "2130706433",
        "sub.box.lan",
        "localhost..",
    ] {
        for path in ["/abridge/status", "/abridge/healthz", "/abridge/recall/x", "/abridge/summarize"] {
            assert_eq!(checked(None, listener_role, path, &[("host", host)]), Err(AccessError::Host), "{host}");
        }
    }
    let two = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(checked(None, listener_role, "/abridge/status", &two), Err(AccessError::Host));
    assert_eq!(checked(None, listener_role, "/abridge/metrics", &[]), Ok(()));
    let by_target = checked(None, listener_role, "http://evil.example/abridge/status", &[("host", "localhost")]);
    assert_eq!(by_target, Err(AccessError::Host));
    // A Unix socket has no name; on a public address programs may use any name, and pages those that are known.
    let (public, socket) = (ListenerRole::Clients(Exposure::Network), ListenerRole::Clients(Exposure::Unix));
    let any = ("host", "any.example");
    assert_eq!(checked(None, public, "/abridge/healthz", &[any]), Ok(()));
    assert_eq!(checked(None, socket, "/abridge/metrics", &[any]), Ok(()));
    let page = ("sec-fetch-site", "same-origin");
    assert_eq!(checked(None, public, "/abridge/healthz", &[any, page]), Err(AccessError::Host));
    for own in ["box.lan", "10.0.0.1:8787", "[fd00::2]", "localhost"] {
        assert_eq!(checked(None, public, "/abridge/healthz", &[("host", own), page]), Ok(()), "{own}");
    }
}

#[test]
fn pages_of_other_origins_are_refused() {
    let host = ("host", "localhost:8787");
    for listener_role in [
        ListenerRole::Clients(Exposure::Loopback),
        ListenerRole::Clients(Exposure::Network),
        ListenerRole::Operators(Exposure::Unix),
    ] {
        for good in [
            ("origin", "http://localhost:8787"),
            ("origin", "https://LOCALHOST:8787"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(checked(None, listener_role, "/abridge/healthz", &[host, good]), Ok(()), "{good:?}");
        }
        for bad in [
            ("origin", "null"),
            ("origin", ""),
            ("origin", "http://evil.example"),
            ("origin", "http://localhost"),
            ("origin", "http://localhost:3000"),
            ("origin", "http://localhost:8787.evil.example"),
            ("origin", "file://localhost:8787"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "else"),
        ] {
            assert_eq!(
                checked(None, listener_role, "/abridge/healthz", &[host, bad]),
                Err(AccessError::Origin),
                "{bad:?}"
            );
        }
    }
}

#[test]
fn operators_need_the_token_and_an_address_that_serves_them() {
    let right = ("authorization", "bearer a-token-of-operators");
    let local = ("host", "localhost");
    let at = |listener_role, token, path, field| checked(token, listener_role, path, &[local, field]);
    let (main, open, admin) = (
        ListenerRole::Clients(Exposure::Loopback),
        ListenerRole::Clients(Exposure::Network),
        ListenerRole::Operators(Exposure::Network),
    );
    for wrong in [
        ("x-none", "1"),
        ("authorization", "Bearer"),
        ("authorization", "Bearer "),
        ("authorization", "Bearer a-token-of-operator"),
        ("authorization", "Bearer a-token-of-operatorss"),
        ("authorization", "Basic a-token-of-operators"),
        ("authorization", "a-token-of-operators"),
    ] {
        for listener_role in
            [main, admin, ListenerRole::Operators(Exposure::Loopback), ListenerRole::Operators(Exposure::Unix)]
        {
            assert_eq!(at(listener_role, Some(TOKEN), "/abridge/status", wrong), Err(AccessError::Token), "{wrong:?}");
        }
        assert_eq!(at(admin, Some(TOKEN), "/abridge/recall/x", wrong), Err(AccessError::Token));
        assert_eq!(at(main, Some(TOKEN), "/abridge/recall/x", wrong), Ok(()));
    }
    for listener_role in [main, admin, ListenerRole::Operators(Exposure::Unix)] {
        assert_eq!(at(listener_role, Some(TOKEN), "/abridge/status", right), Ok(()));
        assert_eq!(at(listener_role, Some(TOKEN), "/abridge/", ("x-none", "1")), Ok(()));
    }
    assert_eq!(at(open, Some(TOKEN), "/abridge/status", right), Err(AccessError::Address));
    assert_eq!(at(open, None, "/abridge/", right), Err(AccessError::Address));
    assert_eq!(at(admin, None, "/abridge/status", right), Err(AccessError::Token));
    assert_eq!(at(admin, Some(TOKEN), "/abridge/summarize", right), Err(AccessError::Paid));
    assert_eq!(at(admin, Some(TOKEN), "/v1/models", right), Err(AccessError::NotAdminPath));
}

#[test]
fn numbers_are_for_programs_of_this_machine_and_for_operators() {
    let right = ("authorization", "Bearer a-token-of-operators");
    let at = |listener_role, fields: &[(&'static str, &'static str)]| {
        let fields = [&[("host", "localhost")], fields].concat();
        checked(Some(TOKEN), listener_role, "/abridge/metrics", &fields)
    };
    for exposure in [Exposure::Loopback, Exposure::Unix] {
        for role in [ListenerRole::Clients(exposure), ListenerRole::Operators(exposure)] {
            assert_eq!(at(role, &[]), Ok(()));
            for name in ["forwarded", "x-forwarded-for", "x-real-ip", "via"] {
                assert_eq!(at(role, &[(name, "x")]), Err(AccessError::Forwarded), "{name}");
                assert_eq!(at(role, &[(name, "x"), right]), Ok(()), "{name}");
            }
        }
    }
    assert_eq!(at(ListenerRole::Operators(Exposure::Network), &[]), Err(AccessError::Token));
    assert_eq!(at(ListenerRole::Operators(Exposure::Network), &[right]), Ok(()));
    assert_eq!(at(ListenerRole::Clients(Exposure::Network), &[right]), Err(AccessError::Address));
    assert_eq!(["0.0.0.0:1", "[::]:1"].map(|address| Exposure::of(address.parse().unwrap())), [Exposure::Network; 2]);
}

#[test]
fn pages_reach_the_upstream_only_from_this_machine_or_an_allowed_origin() {
    let asked = |allowed_origins: &Option<Vec<String>>, fields: &[(&'static str, &'static str)]| {
        let request = request("/v1/models", fields);
        let access = Access::new(None, ["box.lan"], allowed_origins.clone());
        let on = |exposure| {
            let connection = connection(ListenerRole::Clients(exposure));
            if is_page_request(&request) { access.check_page_request(&request, connection) } else { Ok(()) }
        };
        // Elsewhere the same rules hold where abridge adds something, except that a socket has no name.
        let adds = allowed_origins.is_some();
        assert_eq!(on(Exposure::Network), if adds { on(Exposure::Loopback) } else { Ok(()) });
        on(Exposure::Loopback)
    };
    let (any, known) = (None, Some(vec!["https://chat.example".to_owned()]));
    let (host, foreign) = (("host", "localhost:8787"), ("host", "evil.example:8787"));
    for allowed_origins in [&any, &known] {
        assert_eq!(asked(allowed_origins, &[foreign]), Ok(()), "no browser marks it as a page");
        assert_eq!(asked(allowed_origins, &[foreign, ("sec-fetch-mode", "cors")]), Ok(()), "Node sends this field");
        for mark in [("origin", "http://evil.example:8787"), ("sec-fetch-site", "same-origin"), ("origin", "null")] {
            assert_eq!(asked(allowed_origins, &[foreign, mark]), Err(AccessError::Host), "{mark:?}");
        }
        for good in [
            ("origin", "http://localhost:3000"),
            ("origin", "https://127.0.0.1"),
            ("origin", "http://[::1]:5173"),
            ("origin", "http://box.lan:3000"),
            ("origin", "chrome-extension://abcdef"),
            ("origin", "vscode-webview://abcdef"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(asked(allowed_origins, &[host, good]), Ok(()), "{good:?}");
        }
    }
    assert_eq!(asked(&known, &[host, ("origin", "HTTPS://Chat.Example"), ("sec-fetch-site", "cross-site")]), Ok(()));
    for bad in [
        ("origin", "https://evil.example"),
        ("origin", "http://chat.example"),
        ("origin", "https://chat.example:1"),
        ("origin", "http://localhost.evil.example"),
        ("origin", "null"),
        ("origin", ""),
        ("sec-fetch-site", "cross-site"),
    ] {
        assert_eq!(asked(&any, &[host, bad]), Ok(()), "who has no key gets nothing: {bad:?}");
        assert_eq!(asked(&known, &[host, bad]), Err(AccessError::Page), "{bad:?}");
    }
    let two = [host, ("origin", "http://localhost"), ("origin", "https://evil.example")];
    assert_eq!(asked(&known, &two), Err(AccessError::Page));
}
