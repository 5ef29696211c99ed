"""An agent of Pydantic AI with its Anthropic model and a shell. It says what the model says last."""

import subprocess
import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel

agent = Agent(AnthropicModel("claude-opus-4-8"))


@agent.tool_plain
def Bash(command: str, description: str) -> str:
    """Run a command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout.rstrip("\n")


print(agent.run_sync(sys.argv[1]).output)
