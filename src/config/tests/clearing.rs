//! Errors in the settings of what is cleared, when, and at which prices.

use super::{check, file};
use crate::tokens::prices::Price;

#[test]
fn what_contradicts_itself_is_refused() {
    check(&[
        (
            "[clear_tool_results]\nfrontier = \"sliding\"\nwhen = \"turn\"",
            "proxy.toml:3:8: clear_tool_results.when: \"turn\" needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\"",
        ),
        (
            "preset = \"eino\"\n[clear_tool_results]\nclear_at_least = \"auto\"",
            "proxy.toml:3:18: clear_tool_results.clear_at_least: \"auto\" needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\"",
        ),
        ("[prices]\nread = 1.5", "proxy.toml:2:8: prices.read: more than a token that no cache knows; allowed: 0 to 1"),
        (
            "[prices]\nread = 0.5\nwrite = 0.4",
            "proxy.toml:3:9: prices.write: less than a token that is read costs; allowed: read or more",
        ),
        (
            "[prices]\nread = 0.5\n[[prices.of]]\nmodel = \"x\"\nwrite = 0.4",
            "proxy.toml:5:9: prices.of.0.write: less than a token that is read costs; allowed: read or more",
        ),
        (
            "[[prices.of]]\nread = 0.1",
            "proxy.toml:1:1: prices.of.0: the table fits every request; allowed: model or upstream, or the keys in [prices]",
        ),
        (
            "[[prices.of]]\nmodel = \"x\"",
            "proxy.toml:1:1: prices.of.0: the table sets nothing; allowed: at least one of read, write and break",
        ),
        ("[tools.x]\nreads = \"\"", "proxy.toml:2:9: tools.x.reads: empty; allowed: the name of an argument"),
        (
            "[tools.x]\nreads = \"a\"\nedits = \"b\"",
            "proxy.toml:2:9: tools.x.reads: a call reads a file or writes it; allowed: one of reads and edits",
        ),
    ]);
}

#[test]
fn prices_are_read_from_whole_numbers_too() {
    let config = file("[prices]\nread = 0\nwrite = 1\n[clear_tool_results]\nclear_at_least = \"auto\"").unwrap();
    assert!(config.to_toml().unwrap().contains("read = 0.0\nwrite = 1.0"));
    assert!(config.prices.read.is_some_and(Price::is_free));
}
