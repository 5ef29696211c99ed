#!/usr/bin/env bash
# Runs the Windows program under wine, in a scratch folder: the demo, a command under `abridge run`, a store that is in use.
#
#   scripts/wine.sh [PROGRAM]   that of `scripts/cross.sh build x86_64-pc-windows-gnu` where none is named
#
# It needs wine (Debian's wine64 is enough), curl, and zig (`pip install ziglang`) for a library that wine 8 lacks.
# Exit code 69 if something of this is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing() {
    printf 'wine.sh: %s\n' "$1" >&2
    exit 69
}

program="${1:-${CARGO_TARGET_DIR:-$PWD/target/cross}/x86_64-pc-windows-gnu/dist/abridge.exe}"
[[ -e "$program" ]] || missing "there is no $program; scripts/cross.sh build x86_64-pc-windows-gnu"
wine="$(command -v wine64 || command -v wine || compgen -G '/usr/lib/wine/wine64')" || missing "wine is not there; apt-get install wine64"
zig=(zig)
command -v zig >/dev/null || zig=(python3 -m ziglang)
"${zig[@]}" version >/dev/null 2>&1 || missing "zig is not there; pip install ziglang"

folder="$(mktemp -d)"
export WINEPREFIX="$folder/wine" WINEDEBUG=-all
served=
trap '[[ -z "$served" ]] || kill "$served" 2>/dev/null; "${wine%/*}/wineserver" -k 2>/dev/null; rm -rf "$folder"' EXIT
cp "$program" "$folder/abridge.exe"
cat >"$folder/prng.c" <<'C'
#include <stddef.h>
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *bytes, unsigned long n);
__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *bytes, size_t n) { return SystemFunction036(bytes, n); }
C
"${zig[@]}" cc -target x86_64-windows-gnu -shared -o "$folder/bcryptprimitives.dll" "$folder/prng.c" -ladvapi32
cd "$folder"

step() { printf '== %s\n' "$*"; }
fail() {
    printf 'wine.sh: %s\n' "$1" >&2
    exit 1
}

step version
"$wine" abridge.exe --version | grep '^abridge [0-9]' || fail "no version"
step demo
"$wine" abridge.exe demo >demo.txt
tail -n 14 demo.txt
grep -q '44 of 44' demo.txt || fail "the demo has not answered all turns"
step run
status=0
"$wine" abridge.exe run -- cmd /c exit 3 || status=$?
[[ "$status" == 3 ]] || fail "abridge run ended with $status and not with 3"
step serve
"$wine" abridge.exe serve --listen 127.0.0.1:0 --upstream http://127.0.0.1:9/v1 2>log &
served=$!
for _ in {1..100}; do
    address="$(grep -o 'listening on http://[0-9.:]*' log || true)"
    [[ -z "$address" ]] || break
    sleep 0.2
done
[[ -n "$address" ]] || fail "it does not listen: $(cat log)"
curl -sf "${address#listening on }/abridge/healthz" >/dev/null || fail "it is not healthy"
curl -sf -X POST "${address#listening on }/abridge/reload"
status=0
"$wine" abridge.exe serve --listen 127.0.0.1:0 --upstream http://127.0.0.1:9/v1 2>second || status=$?
[[ "$status" != 0 ]] || fail "a second process has opened the store"
grep 'is in use by another abridge' second || fail "the second process says: $(cat second)"
step "all of it holds"
