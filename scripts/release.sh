#!/usr/bin/env bash
# Builds abridge so that the same commit, toolchain and target give the same bytes, wherever the sources lie and whoever builds.
#
#   scripts/release.sh            the binary in target/release (or below CARGO_TARGET_DIR), and its sum
#   scripts/release.sh --check    builds this commit twice, in two folders, and fails if the binaries differ
#
# More arguments go to cargo: scripts/release.sh --target aarch64-unknown-linux-gnu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What differs between two machines is where things lie: those paths get the same name everywhere, in Rust and in the C of zstd and ring.
build() {
    local sources="$PWD" cargo_home="${CARGO_HOME:-$HOME/.cargo}" flags
    # Cargo splits this variable at 0x1f, so that paths may have spaces.
    printf -v flags '%s\x1f%s' "--remap-path-prefix=$sources=/abridge" "--remap-path-prefix=$cargo_home=/cargo"
    CARGO_ENCODED_RUSTFLAGS="$flags" \
        CFLAGS="${CFLAGS:-} -ffile-prefix-map=$sources=/abridge -ffile-prefix-map=$cargo_home=/cargo" \
        CARGO_INCREMENTAL=0 cargo build --release --locked --bin abridge "$@"
}

if [[ "${1:-}" != --check ]]; then
    build "$@"
    find "${CARGO_TARGET_DIR:-target}" -path '*release/abridge' -newer Cargo.toml -exec sha256sum {} +
    exit
fi

shift
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
for copy in one another/deeper; do
    mkdir -p "$scratch/$copy"
    git archive HEAD | tar --extract --directory "$scratch/$copy"
    (cd "$scratch/$copy" && CARGO_TARGET_DIR="$PWD/target" build "$@")
done
mapfile -t sums < <(find "$scratch" -path '*release/abridge' -exec sha256sum {} + | cut --delimiter=' ' --fields=1)
printf '%s\n' "${sums[@]}"
[[ ${#sums[@]} == 2 && "${sums[0]}" == "${sums[1]}" ]] || { printf 'the two builds differ\n' >&2; exit 1; }
