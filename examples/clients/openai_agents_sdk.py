"""openai-agents: it reads OPENAI_BASE_URL and OPENAI_API_KEY, and speaks OpenAI Responses.

    OPENAI_BASE_URL=http://127.0.0.1:8787/v1 python openai_agents_sdk.py
"""

from agents import Agent, Runner, function_tool


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"what is in {path}"


agent = Agent(name="reader", model="gpt-4o-mini", tools=[read_file])
print(Runner.run_sync(agent, "What is in notes.txt?").final_output)
