"""Pydantic AI: its OpenAI provider reads OPENAI_BASE_URL and OPENAI_API_KEY.

The model class says that Chat Completions is spoken; with `Agent("openai:...")` the requests may go to /v1/responses, which
abridge edits, too.

    OPENAI_BASE_URL=http://127.0.0.1:8787/v1 python pydantic_ai_agent.py
"""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("gpt-4o-mini"))


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a file."""
    return f"what is in {path}"


print(agent.run_sync("What is in notes.txt?").output)
