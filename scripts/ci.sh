#!/usr/bin/env bash
# All that must hold before a merge, in the order in which it is quickest to fail. `just ci` runs it, and .ci/run does.
#
# ABRIDGE_CORPUS and its siblings, ABRIDGE_CLIENTS and ABRIDGE_BROWSER, where they are set, make the tests run over recorded
# traffic, with real clients and in a browser too.
#
#   ci.sh           all of it
#   ci.sh build     what needs none of these: the form of the code, and the tests built
#   ci.sh lint      the lints and the documentation
#   ci.sh programs  the tests that drive other programs: clients, databases, package managers, a browser
#   ci.sh others    the tests but these and those of `it`
#   ci.sh test      the rest, beside each other: tests, lints, benches
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() {
    printf '\n== %s (after %d s)\n' "$*" "$SECONDS"
    "$@"
}

# Everything is built once, in a profile between those of tests and of releases: nothing is measured here.
ci=(--locked --profile ci)
# `test = false` keeps it out of all targets, and no flag adds it to them.
sessions=(--test sessions)
benches=(--bench core --bench load)

build() {
    step cargo fmt --check
    # Advisories change from day to day, and are no reason for a build to fail: `just deny` asks for them too.
    if cargo deny --version >/dev/null 2>&1; then
        step cargo deny --locked check bans licenses sources
    fi
    step cargo update --locked --workspace --manifest-path fuzz/Cargo.toml
    step cargo test "${ci[@]}" --no-run
    step cargo test "${ci[@]}" --no-run "${sessions[@]}"
    step cargo bench "${ci[@]}" --no-run "${benches[@]}"
}

lint() {
    # A folder of its own, so that neither this nor the tests wait for the other.
    ci+=(--quiet --target-dir "${CARGO_TARGET_DIR:-target}/lints")
    step cargo clippy "${ci[@]}" --all-targets -- -D warnings
    step cargo clippy "${ci[@]}" "${sessions[@]}" -- -D warnings
    # Without the features that may be left out.
    step cargo clippy "${ci[@]}" --lib --no-default-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" step cargo doc "${ci[@]}" --no-deps --document-private-items
}

programs=(clients fleet packages page)

programs() {
    step cargo test "${ci[@]}" --no-fail-fast "${programs[@]/#/--test=}"
}

others() {
    local targets=(--lib --bins --examples) name
    for name in $(sed -n '/^\[\[test\]\]/{n;s/^name = "\(.*\)"/\1/p}' Cargo.toml); do
        [[ " it sessions ${programs[*]} " == *" $name "* ]] || targets+=(--test "$name")
    done
    step cargo test "${ci[@]}" --no-fail-fast "${targets[@]}"
    step cargo test "${ci[@]}" --doc
    step cargo test "${ci[@]}" "${sessions[@]}"
}

tests() {
    # Tests mostly wait, so the parts run beside each other; those of `it` look most at the time, and go first.
    local said="${CARGO_TARGET_DIR:-target}" part failed=0
    local -A niceness=([programs]=5 [others]=10 [lint]=19)
    declare -gA running=()
    for part in "${!niceness[@]}"; do
        nice -n "${niceness[$part]}" scripts/ci.sh "$part" >"$said/$part.log" 2>&1 &
        running[$part]=$!
    done
    trap 'for pid in "${running[@]}"; do { pkill -P "$pid" || kill "$pid"; } 2>/dev/null || true; done' EXIT
    step cargo test "${ci[@]}" --no-fail-fast --test it 2>&1 | tee "$said/it.log" || failed=1
    for part in "${!niceness[@]}"; do
        wait "${running[$part]}" || failed=1
        cat "$said/$part.log"
    done
    if ((failed)); then
        printf '\n== What failed, and what it said\n'
        sed -n '/^failures:$/,/^test result: FAILED/p' "$said/it.log" "$said"/{programs,others}.log | sed -n 1,400p
        exit 1
    fi
    # One round, which says that the benches work, not how quick anything is.
    step cargo bench "${ci[@]}" --bench core -- --once
    step cargo bench "${ci[@]}" --bench load -- --once
    # Half a minute of what `just soak` does for twenty.
    step cargo bench "${ci[@]}" --bench load -- --soak 30
    # Instructions, which do not depend on what else the machine does.
    step scripts/bench-guard.py
}

case "${1:-all}" in
all)
    build
    tests
    ;;
build) build ;;
lint) lint ;;
programs) programs ;;
others) others ;;
test) tests ;;
*) echo "usage: ci.sh [build|lint|programs|others|test]" >&2 && exit 64 ;;
esac
printf '\n== %s: all of it holds (after %d s)\n' "${1:-all}" "$SECONDS"
