#!/usr/bin/env bash
# All that must hold before a merge, in the order in which it is quickest to fail. `just ci` runs it, and .ci/run does.
#
# ABRIDGE_CORPUS and its siblings, ABRIDGE_CLIENTS and ABRIDGE_BROWSER, where they are set, make the tests run over recorded
# traffic, with real clients and in a browser too.
#
#   ci.sh          all of it
#   ci.sh build    what needs none of these: the form of the code, and the tests built
#   ci.sh test     the rest: lints, tests, documentation, benches
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Nothing is measured here, so benches and what plays recorded traffic are built without the optimisations of releases that
# take minutes, and tests without the lines of a backtrace.
export CARGO_PROFILE_BENCH_LTO=off CARGO_PROFILE_BENCH_CODEGEN_UNITS=16 CARGO_PROFILE_BENCH_OPT_LEVEL=2
export CARGO_PROFILE_BENCH_DEBUG_ASSERTIONS=true CARGO_PROFILE_BENCH_OVERFLOW_CHECKS=true
export CARGO_PROFILE_DEV_DEBUG=0
# What is built once needs no folders of an incremental build, which take several gigabytes.
export CARGO_INCREMENTAL=0

step() {
    printf '\n== %s (after %d s)\n' "$*" "$SECONDS"
    "$@"
}

build() {
    step cargo fmt --check
    # Advisories change from day to day, and are no reason for a build to fail: `just deny` asks for them too.
    if cargo deny --version >/dev/null 2>&1; then
        step cargo deny --locked check bans licenses sources
    fi
    step cargo update --locked --workspace --manifest-path fuzz/Cargo.toml
    step cargo test --locked --no-run
}

# Lints have a folder of their own, so that neither waits for the other.
lint() {
    nice -n 19 cargo clippy --locked --quiet --target-dir "${CARGO_TARGET_DIR:-target}/lints" "$@" -- -D warnings
}

beside_the_tests() {
    lint --all-targets
    # `test = false` keeps it out of all targets, and `--all-targets --test sessions` does not add it.
    lint --test sessions
    nice -n 19 cargo test "$@" --no-run --quiet
    nice -n 19 cargo bench --locked --no-run --quiet --bench core --bench load
}

tests() {
    # Recorded traffic is played in the profile that the benches are built with: unoptimised, it takes four times as long. That
    # is built, and lints are checked, while tests run, which mostly wait.
    local played=(--locked --profile bench --test corpus --test corpus_messages --test corpus_responses --test sessions)
    beside_the_tests "${played[@]}" &
    building=$!
    trap '{ pkill -P "$building" || kill "$building"; } 2>/dev/null || true' EXIT
    step env -u ABRIDGE_CORPUS -u ABRIDGE_CORPUS_MESSAGES -u ABRIDGE_CORPUS_RESPONSES cargo test --locked
    step cargo test --locked --test it the_tap_and_eventsource_stream_see_the_same
    step wait "$building"
    step cargo test "${played[@]}"
    # The lints have checked the dependencies in their folder.
    RUSTDOCFLAGS="-D warnings" step cargo doc --locked --no-deps --document-private-items --target-dir "${CARGO_TARGET_DIR:-target}/lints"
    # One round, which says that the benches work, not how quick anything is.
    step cargo bench --locked --bench core -- --once
    step cargo bench --locked --bench load -- --once
    # Half a minute of what `just soak` does for twenty.
    step cargo bench --locked --bench load -- --soak 30
}

case "${1:-all}" in
all)
    build
    tests
    ;;
build) build ;;
test) tests ;;
*) echo "usage: ci.sh [build|test]" >&2 && exit 64 ;;
esac
printf '\n== %s: all of it holds (after %d s)\n' "${1:-all}" "$SECONDS"
