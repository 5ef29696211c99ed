//! What abridge is built from: locked, from one registry, with a Rust that is the same in every place that names it.

use std::path::Path;

use super::{Wrong, absolute, read};

#[test]
fn every_dependency_says_what_for() {
    let mut wrong = Wrong::default();
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut in_dependencies = false;
        for (n, line) in read(manifest).lines().enumerate() {
            if line.starts_with('[') {
                in_dependencies = line.contains("dependencies");
            } else if in_dependencies && line.contains('=') && !line.starts_with('#') && !line.contains(" # ") {
                wrong.push(format!("{manifest}:{}: no comment; say what the dependency is for", n + 1));
            }
        }
    }
    wrong.end();
}

#[test]
fn the_oldest_rust_that_will_do_is_the_one_that_everything_is_tested_with() {
    let manifest = read("Cargo.toml");
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("no rust-version");
    let rust = rust.trim_matches('"');
    let says = |path: &str, what: &str| assert!(read(path).contains(what), "{path} does not say {what:?}");
    says("rust-toolchain.toml", &format!("channel = \"{rust}."));
    // To the patch, as packaging/profile.txt is of one rustc.
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.split('"').nth(1).expect("a channel");
    says("Dockerfile", &format!("FROM rust:{channel}-"));
    says("packaging/profile.txt", &format!("rustc {channel} "));
    says("README.md", &format!("Rust {rust} "));
}

#[test]
fn what_is_built_in_is_locked_and_comes_from_one_registry() {
    let mut wrong = Wrong::default();
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"].into_iter().filter(|lock| Path::new(&absolute(lock)).exists()) {
        for package in read(lock).split("[[package]]").skip(1) {
            let name = package.lines().find(|line| line.starts_with("name = ")).unwrap_or_default();
            let source = package.lines().find(|line| line.starts_with("source = "));
            let is_registry = |line: &str| line.contains("registry+https://github.com/rust-lang/crates.io-index");
            match source {
                Some(line) if !is_registry(line) => wrong.push(format!("{lock}: {name} is from {line}")),
                Some(_) if !package.contains("\nchecksum = ") => wrong.push(format!("{lock}: {name} has no checksum")),
                None if !name.contains("\"abridge") => wrong.push(format!("{lock}: {name} is from nowhere")),
                _ => {}
            }
        }
    }
    wrong.end();
}
