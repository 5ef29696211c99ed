#!/bin/sh
# Makes src/simulate/regret/background.bin: the lower 32 bits of the hashes of at most 16,384 lines and names that several
# projects have, in order. The projects are public code that a developer's machine has: the crates that cargo has unpacked,
# Python's standard library and packages as Debian installs them, and the packages that npm consists of. What machines have
# differs, so the file is committed. `abridge simulate` does not count a unit as missed that anybody may write.
#
#   scripts/pack_background.sh
set -eu
cd "$(dirname "$0")/.."
crates=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/ | head -n 1)
python=$(ls -d /usr/lib/python3.* | tail -n 1):/usr/lib/python3/dist-packages
node=$(dirname "$(readlink -f "$(command -v npm)")")/../node_modules
cargo run --quiet --locked --example pack_background -- "${crates%/}" "$python" "$node" > target/background.bin
mv target/background.bin src/simulate/regret/background.bin
