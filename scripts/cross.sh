#!/usr/bin/env bash
# Compiles abridge for other systems than this one.
#
#   scripts/cross.sh check TARGET…   compiles for each target, and links nothing
#   scripts/cross.sh build TARGET…   the binary of each target in target/cross/TARGET/release, and its sum
#
# It needs cargo-zigbuild and zig, which compiles C and links (`pip install cargo-zigbuild`), and for each target a standard library:
#   - installed: `rustup target add TARGET`; or else
#   - its sources, with which it is compiled here: `rustup component add rust-src`, or another compiler that RUSTC names and that
#     has them, such as that of Debian (`apt-get install rustc-web rust-web-src`, RUSTC=/usr/bin/rustc).
# Exit code 69 if something of this is not there. The folder is CARGO_TARGET_DIR where that is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing() {
    printf 'cross.sh: %s\n' "$1" >&2
    exit 69
}

case "${1:-} ${2:-}" in
"check "?*) command=(check) ;;
"build "?*) command=(zigbuild --profile dist) ;;
*) echo "usage: cross.sh check|build TARGET…" >&2 && exit 64 ;;
esac
what="$1"
shift
command -v cargo-zigbuild >/dev/null || missing "cargo-zigbuild is not there; pip install cargo-zigbuild"
command -v zig >/dev/null || python3 -m ziglang version >/dev/null 2>&1 || missing "zig is not there; pip install ziglang"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target/cross}"
sysroot="$("${RUSTC:-rustc}" --print sysroot)/lib/rustlib"
for target in "$@"; do
    std=()
    if ! compgen -G "$sysroot/$target/lib/libstd-*.rlib" >/dev/null; then
        [[ -e "$sysroot/src/rust/library/Cargo.lock" ]] ||
            missing "no standard library for $target: rustup target add $target, or the sources of one, as $0 says"
        std=(-Z build-std=std,panic_unwind)
        export RUSTC_BOOTSTRAP=1
        flags="CARGO_TARGET_$(tr a-z- A-Z_ <<<"$target")_RUSTFLAGS"
        case "$target" in
        # The objects that a program begins with are zig's, too; the sources have none.
        *-musl) export "$flags=-Clink-self-contained=no" ;;
        # Debian's compiler has a part of GCC's runtime linked that zig has no need of, so an archive without members will do.
        *-windows-gnu)
            mkdir -p "$CARGO_TARGET_DIR/empty"
            printf '!<arch>\n' >"$CARGO_TARGET_DIR/empty/libssp_nonshared.a"
            export "$flags=-L$CARGO_TARGET_DIR/empty"
            ;;
        esac
    fi
    printf '== %s %s\n' "$what" "$target"
    cargo-zigbuild "${command[@]}" --locked --bin abridge --target "$target" "${std[@]}"
    [[ "$what" != build ]] || find "$CARGO_TARGET_DIR/$target/dist" -maxdepth 1 '(' -name abridge -o -name abridge.exe ')' -exec sha256sum {} +
done
