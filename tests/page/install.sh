#!/bin/sh
# Installs what drives a browser for tests/page.rs into a scratch folder:
#   tests/page/install.sh DIR && ABRIDGE_BROWSER=DIR cargo test --test page
# The browser itself is Debian's chromium, or the one that ABRIDGE_CHROMIUM names; root gets it with apt-get, others ask their system.
# The version of what drives it is pinned, so that a failure is ours and not a new release's. The test itself needs no network.
set -eu

npm_version=1.64.1

dir=${1:?usage: install.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

chromium=${ABRIDGE_CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}
if [ -z "$chromium" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
    chromium=$(command -v chromium)
fi
if [ -z "$chromium" ]; then
    echo "there is no chromium, and only root on Debian has it installed from here" >&2
    exit 1
fi
if [ "$(cat "$dir/installed" 2>/dev/null)" != "$npm_version" ]; then
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir" "playwright-core@$npm_version"
    echo "$npm_version" >"$dir/installed"
fi
echo "$chromium" >"$dir/browser"
