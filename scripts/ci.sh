#!/usr/bin/env bash
# All that must hold before a merge, in the order in which it is quickest to fail. `just ci` runs it, and .ci/run does.
#
# ABRIDGE_CORPUS, ABRIDGE_CLIENTS and ABRIDGE_BROWSER, where they are set, make `cargo test` run over a corpus, with real clients
# and in a browser too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Nothing is measured here, so benches and the sessions are built without the optimisations of releases that take minutes.
export CARGO_PROFILE_BENCH_LTO=off CARGO_PROFILE_BENCH_CODEGEN_UNITS=16 CARGO_PROFILE_BENCH_OPT_LEVEL=2

step() {
    printf '\n== %s (after %d s)\n' "$*" "$SECONDS"
    "$@"
}

step cargo fmt --check
# Advisories change from day to day, and are no reason for a build to fail: `just deny` asks for them too.
if cargo deny --version >/dev/null 2>&1; then
    step cargo deny --locked check bans licenses sources
fi
step cargo update --locked --workspace --manifest-path fuzz/Cargo.toml
step cargo clippy --locked --all-targets -- -D warnings
# `test = false` keeps it out of all targets, and `--all-targets --test sessions` does not add it.
step cargo clippy --locked --test sessions -- -D warnings
step cargo test --locked
# In the profile that the benches are built with, so that nothing is built for it alone.
step cargo test --locked --profile bench --test sessions
RUSTDOCFLAGS="-D warnings" step cargo doc --locked --no-deps --document-private-items
# One round, which says that the benches work, not how quick anything is.
step cargo bench --locked --bench core -- --once
step cargo bench --locked --bench load -- --once
# A minute of what `just soak` does for twenty.
step cargo bench --locked --bench load -- --soak 60
printf '\n== all of it holds (after %d s)\n' "$SECONDS"
