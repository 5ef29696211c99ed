#!/bin/sh
# Installs the OpenAI clients that tests/clients.rs drives into a scratch folder:
#   tests/clients/install.sh DIR && ABRIDGE_CLIENTS=DIR cargo test --test clients
# The versions are pinned, so that a failure is ours and not a new release's. The test itself needs no network.
set -eu

python_version=3.52.0
npm_version=7.55.0

dir=${1:?usage: install.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

if [ "$(cat "$dir/installed" 2>/dev/null)" = "$python_version $npm_version" ]; then
    exit 0
fi
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "openai==$python_version"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir" "openai@$npm_version"
echo "$python_version $npm_version" >"$dir/installed"
