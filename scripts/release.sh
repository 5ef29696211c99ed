#!/usr/bin/env bash
# Builds abridge so that the same commit, toolchain and target give the same bytes, wherever the sources lie and whoever builds.
#
#   scripts/release.sh            the binary in target/dist (or below CARGO_TARGET_DIR), and its sum
#   scripts/release.sh --check    builds this commit twice, in two folders, and fails if the binaries differ
#   scripts/release.sh --record   writes packaging/profile.txt and functions.txt anew: which branches and functions run how often
#   scripts/release.sh --pack TRIPLE
#                                 builds for that platform, plays the demo if this machine can, and packs the binary into
#                                 target/packages for those who have no Rust
#   scripts/release.sh --bundle   with the packages of all platforms in target/packages: the launcher of npm, formula,
#                                 manifest and sums of the release, and target/image, from which the Dockerfile makes images
#                                 without building; a tag in GITHUB_REF must be that of the version, which has its date in CHANGELOG.md
#
# More arguments go to cargo: scripts/release.sh --target aarch64-unknown-linux-gnu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

host="$(rustc -vV | sed -n 's/^host: //p')"

# Sets `cargo` to the command that builds with these flags for rustc. What differs between two builds is where things lie, and when
# they are built: paths get the same name everywhere, in Rust and in the C of zstd, ring and mimalloc, and mimalloc, which has its
# date and time of compilation in a message, those of the epoch.
prepare() {
    local sources="$PWD" cargo_home="${CARGO_HOME:-$HOME/.cargo}" flags=("$@")
    flags+=("--remap-path-prefix=$sources=/abridge" "--remap-path-prefix=$cargo_home=/cargo" -Csymbol-mangling-version=v0)
    # Cargo splits this variable at 0x1f, so that paths may have spaces.
    CARGO_ENCODED_RUSTFLAGS="$(IFS=$'\x1f' && printf '%s' "${flags[*]}")"
    export CARGO_ENCODED_RUSTFLAGS CARGO_INCREMENTAL=0 SOURCE_DATE_EPOCH=0
    export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$sources=/abridge -ffile-prefix-map=$cargo_home=/cargo"
    # Windows starts no script in place of rustc.
    [[ "$host" == *windows* ]] || export RUSTC_WRAPPER="$sources/scripts/rustc.sh"
    cargo=(cargo rustc --profile dist --locked --bin abridge)
}

# Builds with symbols, and prints the path of the program.
with_symbols() {
    "${cargo[@]}" --config 'profile.dist.strip="none"' --message-format=json "$@" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

build() {
    local target="$host" profile program order
    [[ "$*" != *--target* ]] || target="$(sed 's/.*--target[ =]\([^ ]*\).*/\1/' <<<"$*")"
    if [[ "$host" == *windows* ]]; then
        printf '== NOT PROFILED: abridge, as scripts/rustc.sh does not run on Windows\n'
        prepare
    else
        profile="$(scripts/profile.py "$target")"
        prepare "-Cprofile-use=$profile"
    fi
    cargo+=("$@")
    if [[ "$target" != x86_64-unknown-linux-gnu ]]; then
        "${cargo[@]}"
        return
    fi
    # There rustc links with LLD, which puts functions in a given order. Their symbols are known once they have been linked.
    program="$(with_symbols)"
    local arguments=(-Cstrip=symbols)
    if grep --quiet --binary-files=text 'Linker: LLD' "$program"; then
        # Cargo hashes the arguments and not the file: the path is relative, and another one for another order.
        mkdir -p target
        scripts/order.py "$program" >target/functions.order
        order="target/functions.$(sha256sum target/functions.order | head -c 12).order"
        mv target/functions.order "$order"
        arguments+=("-Clink-arg=-Wl,--symbol-ordering-file=$order,--no-warn-symbol-ordering")
    else
        printf '== NOT ORDERED: the functions of abridge, as the linker is not LLD\n'
    fi
    "${cargo[@]}" --config 'profile.dist.strip="none"' -- "${arguments[@]}"
}

if [[ "${1:-}" == --record ]]; then
    # A target of its own: what cargo runs while it builds is not to count.
    (prepare -Cprofile-generate && program="$(with_symbols --target "$host")" && scripts/profile.py --record "$program")
    prepare "-Cprofile-use=$(scripts/profile.py "$host")"
    scripts/order.py --record "$(with_symbols)"
    exit
fi

if [[ "${1:-}" == --pack ]]; then
    triple="${2:?usage: release.sh --pack TRIPLE}"
    build --target "$triple"
    program="${CARGO_TARGET_DIR:-target}/$triple/dist/abridge"
    [[ "$triple" != *windows* ]] || program+=.exe
    # A static program for musl runs with any C library.
    if [[ "${triple%-*}" == "${host%-*}" ]]; then
        "$program" demo
    else
        printf '== NOT RUN: the demo, as this machine is %s\n' "$host"
    fi
    packaging/pack.py "$triple" "$program" "${CARGO_TARGET_DIR:-target}/packages"
    exit
fi

if [[ "${1:-}" == --bundle ]]; then
    target="${CARGO_TARGET_DIR:-target}"
    version="$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)"
    if [[ "${GITHUB_REF:-}" == refs/tags/* && "$GITHUB_REF" != "refs/tags/v$version" ]]; then
        printf 'the tag %s is not that of version %s of Cargo.toml\n' "$GITHUB_REF" "$version" >&2
        exit 1
    fi
    if [[ "${GITHUB_REF:-}" == refs/tags/* ]] && ! grep --quiet "^## \[$version\] - [0-9]" CHANGELOG.md; then
        printf 'CHANGELOG.md has no date for version %s\n' "$version" >&2
        exit 1
    fi
    packaging/pack.py release "$target/packages"
    for platform in x86_64:amd64 aarch64:arm64; do
        image="$target/image/out/${platform#*:}"
        mkdir -p "$image"
        tar --extract --file "$target/packages/abridge-$version-${platform%:*}-unknown-linux-musl.tar.gz" \
            --directory "$image" --strip-components 1 --wildcards '*/abridge'
    done
    install -d -m 700 "$target/image/out/state/abridge"
    exit
fi

if [[ "${1:-}" != --check ]]; then
    build "$@"
    find "${CARGO_TARGET_DIR:-target}" -path '*dist/abridge' -newer Cargo.toml -exec sha256sum {} +
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
mapfile -t sums < <(find "$scratch" -path '*dist/abridge' -exec sha256sum {} + | cut --delimiter=' ' --fields=1)
printf '%s\n' "${sums[@]}"
[[ ${#sums[@]} == 2 && "${sums[0]}" == "${sums[1]}" ]] || { printf 'the two builds differ\n' >&2; exit 1; }
