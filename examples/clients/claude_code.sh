#!/bin/sh
# Claude Code: ANTHROPIC_BASE_URL has no /v1. abridge runs with `--upstream anthropic=https://api.anthropic.com`. Arguments go to
# claude: `claude_code.sh -p "What is in notes.txt?"`.
export ANTHROPIC_BASE_URL="${ANTHROPIC_BASE_URL:-http://127.0.0.1:8787}"
exec claude "$@"
