"""An agent of openai-agents, which speaks OpenAI Responses, with a shell. It says what the model says last."""

import subprocess
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def exec_command(cmd: str) -> str:
    """Run a command."""
    return subprocess.run(cmd, shell=True, capture_output=True, text=True).stdout.rstrip("\n")


agent = Agent(name="lister", model="gpt-5", tools=[exec_command])
print(Runner.run_sync(agent, sys.argv[1], max_turns=60).final_output)
