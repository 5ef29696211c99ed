#!/bin/sh
# Makes src/simulate/regret/background.bin: the lower 32 bits of the hashes of 16,384 lines and names that several projects
# have. The projects are what a developer's machine has: the crates that cargo has unpacked, the modules of Python's
# standard library and of its installed packages, and the packages that npm itself consists of. What machines have differs,
# so the file is committed. What it is for: `abridge simulate` does not count a unit as missed that anybody may write.
#
#   scripts/pack_background.sh
set -eu
cd "$(dirname "$0")/.."
crates=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/ | head -n 1)
python=$(python3 -c 'import site, sysconfig; print(":".join([sysconfig.get_path("stdlib"), *site.getsitepackages()]))')
node=$(dirname "$(readlink -f "$(command -v npm)")")/../node_modules
cargo run --quiet --locked --example pack_background -- "${crates%/}" "$python" "$node" > target/background.bin
mv target/background.bin src/simulate/regret/background.bin
