# Everything that a person or a machine runs here. `just` alone lists it.

# List the recipes
list:
    @{{ just_executable() }} --list --unsorted

# All that must hold before a merge: format, lints, tests, docs, one round of each bench
ci:
    scripts/ci.sh

# Lint the code, its tests and its benches
clippy:
    cargo clippy --all-targets -- -D warnings
    cargo clippy --test sessions -- -D warnings
    cargo clippy --lib --no-default-features -- -D warnings

# Run the tests; `just test NAME` runs those with NAME in theirs
test *args:
    cargo test --no-fail-fast {{ args }}

# Build the documentation of the code; links that lead nowhere are errors
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items

# Run the proxy; `just run --upstream http://127.0.0.1:8000/v1`
run *args:
    cargo run --release -- serve {{ args }}

# Replay what was recorded; `just replay recordings`
replay *dirs:
    cargo run --release -- replay {{ dirs }}

# Write each plan.snap of the fixtures anew, to be read before it is committed
fixtures:
    UPDATE_FIXTURES=1 cargo test --test replay
    git diff --stat -- fixtures

# Run the tests with real clients, the packages of PyPI and npm, and all that examples/clients shows, installed into a folder first
clients dir=(justfile_directory() / "target/clients"):
    tests/clients/install.sh "{{ dir }}" all
    ABRIDGE_CLIENTS="{{ dir }}" cargo test --test clients

# Fuzz a target of fuzz/, or `all` in turn; `just fuzz tap 10` for ten minutes (needs cargo-fuzz)
fuzz target minutes:
    for target in $([ {{ target }} = all ] && basename --suffix .rs fuzz/fuzz_targets/*.rs || echo {{ target }}); do mkdir -p "fuzz/target/found/$target" "fuzz/regressions/$target" && RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" "fuzz/target/found/$target" "fuzz/corpus/$target" "fuzz/regressions/$target" -- -dict=fuzz/tokens.dict -max_len=4096 -rss_limit_mb=4096 -max_total_time=$(({{ minutes }} * 60)) || exit 1; done

# Let everything misbehave together for ten minutes, in each of two ways: kills, a full disk, rude clients and upstreams, and flipped bits
chaos seconds="1200":
    ABRIDGE_CHAOS_SECONDS={{ seconds }} cargo test --profile ci --test it -- chaos --nocapture

# Measure the core alone
bench:
    cargo bench --bench core

# Compare the instructions that the core takes with benches/instructions.json (needs valgrind); `just bench-guard --write` records them
bench-guard *args:
    scripts/bench-guard.py {{ args }}

# Measure the whole proxy beside nginx; docs/benchmarking.md says how to read it
bench-load *args:
    cargo bench --bench load -- {{ args }}

# Measure and check it beside nginx, litellm, headroom, awecompress, context-guardian and tensorzero; installs them first
bench-peers *args:
    benches/peers/run.py {{ args }}

# Put everything on abridge at once for 20 minutes, or for so many seconds, and see that nothing grows
soak seconds="1200":
    cargo bench --bench load -- --soak {{ seconds }}

# Build the binary that is given to others: the same bytes from the same commit; `just release --check` builds it twice and compares
release *args:
    scripts/release.sh {{ args }}

# Compile for other systems; `just cross check x86_64-pc-windows-gnu`, `just cross build x86_64-unknown-linux-musl` (needs zig)
cross *args:
    scripts/cross.sh {{ args }}

# Check licences, duplicates, sources and advisories (needs cargo-deny, and for the last github.com)
deny *args:
    cargo deny check {{ args }}

# Write what is built in, with versions, licences and sums, to abridge-proxy.cdx.json (needs cargo-cyclonedx)
sbom:
    cargo cyclonedx --format json --no-build-deps --spec-version 1.5

# See which changes to a file of the pure core no test would notice (needs cargo-mutants); `just mutants src/span.rs`
mutants file *args:
    cargo mutants --file "{{ file }}" {{ args }}
