#!/bin/sh
# aider: OPENAI_API_BASE is its name for the base URL; the prefix `openai/` says which protocol is spoken. Arguments go to
# aider: `aider.sh --message "What is in notes.txt?"`.
export OPENAI_API_BASE="${OPENAI_BASE_URL:-http://127.0.0.1:8787/v1}"
exec aider --model openai/gpt-4o-mini "$@"
