"""LangChain: langchain-openai reads OPENAI_BASE_URL and OPENAI_API_KEY. A round with a tool, as an agent makes it.

    OPENAI_BASE_URL=http://127.0.0.1:8787/v1 python langchain_agent.py
"""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"what is in {path}"


model = ChatOpenAI(model="gpt-4o-mini").bind_tools([read_file])
messages = [HumanMessage("What is in notes.txt?")]
while (answer := model.invoke(messages)).tool_calls:
    messages.append(answer)
    for call in answer.tool_calls:
        messages.append(ToolMessage(read_file.invoke(call["args"]), tool_call_id=call["id"]))
print(answer.text)
