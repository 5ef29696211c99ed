//! Who is let in, and what is a name of this machine.

use super::*;

const TOKEN: &str = "a-token-of-operators";

fn request(path: &str, fields: &[(&'static str, &'static str)]) -> Request<()> {
    let mut request = Request::get(path).body(()).unwrap();
    for (name, value) in fields {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    request
}

fn checked(
    token: Option<&str>,
    door: Door,
    path: &str,
    fields: &[(&'static str, &'static str)],
) -> Result<(), Refused> {
    Access::new(token, ["Box.LAN", "[fd00::1]"]).check(&request(path, fields), Way { peer: Peer::Loopback, door })
}

#[test]
fn what_is_not_in_the_table_is_for_operators() {
    for path in ["/abridge/status", "/abridge/x", "/abridge/recall/", "/abridge/healthz/", "/abridge//", "/abridge/%2e"]
    {
        assert_eq!(class(path), Class::Operators, "{path}");
    }
    for (path, is) in [
        ("/abridge/healthz", Class::Open),
        ("/abridge/recall/x", Class::Clients),
        ("/abridge/summarize/v1/chat/completions", Class::Paid),
        ("/abridge/", Class::Shell),
    ] {
        assert_eq!(class(path), is, "{path}");
    }
}

#[test]
fn only_names_of_this_machine_count_on_loopback_addresses() {
    let door = Door::Clients(Reach::Loopback);
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
        assert_eq!(checked(None, door, "/abridge/status", &[("host", host)]), Ok(()), "{host}");
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
            assert_eq!(checked(None, door, path, &[("host", host)]), Err(Refused::Host), "{host}");
        }
    }
    let two = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(checked(None, door, "/abridge/status", &two), Err(Refused::Host));
    assert_eq!(checked(None, door, "/abridge/status", &[]), Ok(()));
    assert!(!is_of_this_machine(Peer::Loopback, &request("/abridge/events", &[])));
    let by_target = checked(None, door, "http://evil.example/abridge/status", &[("host", "localhost")]);
    assert_eq!(by_target, Err(Refused::Host));
    // Where anybody can come, names prove nothing; a socket has none.
    assert_eq!(checked(None, Door::Clients(Reach::Network), "/abridge/healthz", &[("host", "any.example")]), Ok(()));
    assert_eq!(checked(None, Door::Clients(Reach::Unix), "/abridge/status", &[("host", "any.example")]), Ok(()));
}

#[test]
fn pages_of_other_origins_are_refused() {
    let host = ("host", "localhost:8787");
    for door in [Door::Clients(Reach::Loopback), Door::Clients(Reach::Network), Door::Operators(Reach::Unix)] {
        for good in [
            ("origin", "http://localhost:8787"),
            ("origin", "https://LOCALHOST:8787"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(checked(None, door, "/abridge/healthz", &[host, good]), Ok(()), "{good:?}");
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
            assert_eq!(checked(None, door, "/abridge/healthz", &[host, bad]), Err(Refused::Origin), "{bad:?}");
        }
    }
}

#[test]
fn operators_come_by_the_right_address_with_the_token() {
    let right = ("authorization", "bearer a-token-of-operators");
    let local = ("host", "localhost");
    let at = |door, token, path, field| checked(token, door, path, &[local, field]);
    let (main, open, admin) =
        (Door::Clients(Reach::Loopback), Door::Clients(Reach::Network), Door::Operators(Reach::Network));
    for wrong in [
        ("x-none", "1"),
        ("authorization", "Bearer"),
        ("authorization", "Bearer "),
        ("authorization", "Bearer a-token-of-operator"),
        ("authorization", "Bearer a-token-of-operatorss"),
        ("authorization", "Basic a-token-of-operators"),
        ("authorization", "a-token-of-operators"),
    ] {
        for door in [main, admin, Door::Operators(Reach::Loopback), Door::Operators(Reach::Unix)] {
            assert_eq!(at(door, Some(TOKEN), "/abridge/status", wrong), Err(Refused::Token), "{wrong:?}");
        }
        assert_eq!(at(admin, Some(TOKEN), "/abridge/recall/x", wrong), Err(Refused::Token));
        assert_eq!(at(main, Some(TOKEN), "/abridge/recall/x", wrong), Ok(()));
    }
    for door in [main, admin, Door::Operators(Reach::Unix)] {
        assert_eq!(at(door, Some(TOKEN), "/abridge/status", right), Ok(()));
        assert_eq!(at(door, Some(TOKEN), "/abridge/", ("x-none", "1")), Ok(()));
    }
    assert_eq!(at(open, Some(TOKEN), "/abridge/status", right), Err(Refused::Address));
    assert_eq!(at(open, None, "/abridge/", right), Err(Refused::Address));
    assert_eq!(at(admin, None, "/abridge/status", right), Err(Refused::Token));
    assert_eq!(at(admin, Some(TOKEN), "/abridge/summarize", right), Err(Refused::Paid));
    assert_eq!(at(admin, Some(TOKEN), "/v1/models", right), Err(Refused::Elsewhere));
}

#[test]
fn who_comes_through_a_proxy_may_come_from_elsewhere() {
    for name in ["forwarded", "x-forwarded-for", "x-real-ip", "via"] {
        let fields = [("host", "localhost"), (name, "x")];
        for reach in [Reach::Loopback, Reach::Unix] {
            assert_eq!(checked(None, Door::Clients(reach), "/abridge/status", &fields), Err(Refused::Forwarded));
        }
        for peer in [Peer::Loopback, Peer::Unix] {
            assert!(!is_of_this_machine(peer, &request("/abridge/events", &fields)), "{name}");
        }
    }
}

#[test]
fn tells_this_machine_from_others() {
    let of = |peer, host| is_of_this_machine(peer, &request("/abridge/events", &[("host", host)]));
    assert!(of(Peer::Loopback, "127.0.0.1:8787") && of(Peer::Unix, "anything"));
    assert!(!of(Peer::Remote, "127.0.0.1:8787") && !of(Peer::Loopback, "evil.example"));
    for (address, peer) in [
        ("127.0.0.1:1", Peer::Loopback),
        ("[::1]:1", Peer::Loopback),
        ("[::ffff:127.0.0.1]:1", Peer::Loopback),
        ("10.0.0.1:1", Peer::Remote),
        ("[::ffff:10.0.0.1]:1", Peer::Remote),
    ] {
        assert_eq!(Peer::of(address.parse().ok()), peer, "{address}");
    }
    assert_eq!(Peer::of(None), Peer::Remote);
    assert_eq!(["0.0.0.0:1", "[::]:1"].map(|address| Reach::of(address.parse().unwrap())), [Reach::Network; 2]);
}

#[test]
fn pages_that_ask_the_upstream_are_of_this_machine_or_known() {
    let asked = |pages: &Pages, fields: &[(&'static str, &'static str)]| {
        let request = request("/v1/models", fields);
        let way = |reach| Way { peer: Peer::Loopback, door: Door::Clients(reach) };
        assert!(!is_of_page(&request, way(Reach::Network)) && !is_of_page(&request, way(Reach::Unix)));
        let access = Access::new(None, ["box.lan"]).with_pages(pages.clone());
        if is_of_page(&request, way(Reach::Loopback)) { access.check_page(&request) } else { Ok(()) }
    };
    let (any, known) = (Pages::Any, Pages::Known(vec!["https://chat.example".to_owned()]));
    let (host, foreign) = (("host", "localhost:8787"), ("host", "evil.example:8787"));
    for pages in [&any, &known] {
        assert_eq!(asked(pages, &[foreign]), Ok(()), "no browser says that it is a page");
        assert_eq!(asked(pages, &[foreign, ("sec-fetch-mode", "cors")]), Ok(()), "Node says so");
        for mark in [("origin", "http://evil.example:8787"), ("sec-fetch-site", "same-origin"), ("origin", "null")] {
            assert_eq!(asked(pages, &[foreign, mark]), Err(Refused::Host), "{mark:?}");
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
            assert_eq!(asked(pages, &[host, good]), Ok(()), "{good:?}");
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
        assert_eq!(asked(&known, &[host, bad]), Err(Refused::Page), "{bad:?}");
    }
    let two = [host, ("origin", "http://localhost"), ("origin", "https://evil.example")];
    assert_eq!(asked(&known, &two), Err(Refused::Page));
}
