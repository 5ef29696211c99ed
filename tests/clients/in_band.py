"""Agents of the openai and anthropic packages of PyPI that have one tool and no shell. The model needs a line of a result that
abridge has cleared, and reads it with the tool that abridge adds. The script gets the file with that result.
"""

import json
import sys

import anthropic
import openai

from harness import check, run

log = open(sys.argv[1], encoding="utf-8").read()
question = [{"role": "user", "content": "Which line is it?"}]
schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
asked = []


def query(arguments):
    asked.append(arguments["n"])
    return log if arguments["n"] == 0 else "nothing"


def chat(stream):
    client = openai.OpenAI(max_retries=0, timeout=30)
    tools = [{"type": "function", "function": {"name": "query", "parameters": schema}}]
    messages = list(question)
    while True:
        ask = {"model": "gpt-4o", "messages": messages, "tools": tools}
        if stream:
            with client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as events:
                answer = events.get_final_completion()
        else:
            answer = client.chat.completions.create(**ask)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content, answer.usage.completion_tokens
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in message.tool_calls:
            said = query(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def responses(stream):
    client = openai.OpenAI(max_retries=0, timeout=30)
    tools = [{"type": "function", "name": "query", "parameters": schema, "strict": False}]
    items = list(question)
    while True:
        ask = {"model": "gpt-4o", "input": items, "tools": tools, "store": False}
        if stream:
            with client.responses.stream(**ask) as events:
                answer = events.get_final_response()
        else:
            answer = client.responses.create(**ask)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output_text, answer.usage.output_tokens
        for call in calls:
            items.append({"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments})
            said = query(json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": said})


def messages(stream):
    client = anthropic.Anthropic(max_retries=0, timeout=30)
    turns = list(question)
    while True:
        tools = [{"name": "query", "input_schema": schema}]
        ask = {"model": "claude-opus-5-5", "max_tokens": 100, "messages": turns, "tools": tools}
        if stream:
            with client.messages.stream(**ask) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**ask)
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            said = "".join(block.text for block in answer.content if block.type == "text")
            return said, answer.usage.output_tokens
        turns.append({"role": "assistant", "content": [call.model_dump(include={"type", "id", "name", "input"}) for call in calls]})
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": query(call.input)} for call in calls]
        turns.append({"role": "user", "content": results})


def finds_the_line(agent):
    for stream in (False, True):
        asked.clear()
        said, tokens = agent(stream)
        assert "One moment." in said and said.endswith("It is line 4712."), said
        assert asked == [0, 1, 2] and tokens == 2, (asked, tokens)  # of the last round


@check
def an_agent_in_chat_completions_finds_a_line_in_a_cleared_log():
    finds_the_line(chat)


@check
def an_agent_in_responses_finds_a_line_in_a_cleared_log():
    finds_the_line(responses)


@check
def an_agent_in_messages_finds_a_line_in_a_cleared_log():
    finds_the_line(messages)


run()
