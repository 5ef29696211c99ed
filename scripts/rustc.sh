#!/usr/bin/env bash
# rustc as scripts/release.sh has cargo call it: the symbols of a crate do not depend on the platform, nor on the patch version of
# the crate, so that packaging/profile.txt, which was recorded on one platform, has the names that they have on each.
set -euo pipefail
rustc="$1"
shift
compatible="${CARGO_PKG_VERSION_MAJOR:-0}"
[[ "$compatible" != 0 ]] || compatible="0.${CARGO_PKG_VERSION_MINOR:-0}"
arguments=()
for argument in "$@"; do
    # By that cargo tells crates of one name apart, and it is part of each symbol.
    [[ "$argument" != metadata=* ]] || argument="metadata=${CARGO_PKG_NAME:-}-$compatible"
    arguments+=("$argument")
done
exec "$rustc" "${arguments[@]}"
