"""Pydantic AI with an Anthropic model: it reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.

    ANTHROPIC_BASE_URL=http://127.0.0.1:8787 python pydantic_ai_anthropic.py
"""

from pydantic_ai import Agent

agent = Agent("anthropic:claude-haiku-4-5")


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a file."""
    return f"what is in {path}"


print(agent.run_sync("What is in notes.txt?").output)
