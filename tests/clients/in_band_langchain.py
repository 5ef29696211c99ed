"""Agents of LangChain that have one tool and no shell, as tests/clients/in_band.py has those of the makers' packages."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool

from harness import check, run

log = open(sys.argv[1], encoding="utf-8").read()
asked = []


@tool
def query(n: int) -> str:
    """Ask for something."""
    asked.append(n)
    return log if n == 0 else "nothing"


def finds_the_line(model):
    model = model.bind_tools([query])
    for stream in (False, True):
        asked.clear()
        messages = [HumanMessage("Which line is it?")]
        while True:
            if stream:
                answer = None
                for chunk in model.stream(messages):
                    answer = chunk if answer is None else answer + chunk
            else:
                answer = model.invoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            for call in answer.tool_calls:
                messages.append(ToolMessage(query.invoke(call["args"]), tool_call_id=call["id"]))
        assert "One moment." in answer.text and answer.text.endswith("It is line 4712."), answer
        assert asked == [0, 1, 2], asked
        assert answer.usage_metadata["output_tokens"] == 2, answer.usage_metadata


@check
def an_agent_in_chat_completions_finds_a_line_in_a_cleared_log():
    from langchain_openai import ChatOpenAI

    finds_the_line(ChatOpenAI(model="gpt-4o", max_retries=0, timeout=30, stream_usage=True))


@check
def an_agent_in_responses_finds_a_line_in_a_cleared_log():
    from langchain_openai import ChatOpenAI

    finds_the_line(ChatOpenAI(model="gpt-4o", max_retries=0, timeout=30, use_responses_api=True))


@check
def an_agent_in_messages_finds_a_line_in_a_cleared_log():
    from langchain_anthropic import ChatAnthropic

    finds_the_line(ChatAnthropic(model="claude-opus-5-5", max_retries=0, timeout=30, max_tokens=100))


run()
