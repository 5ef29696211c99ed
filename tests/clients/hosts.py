"""Claude at Vertex AI, Bedrock and Foundry, and OpenAI at Azure, through abridge. What the upstream answers is in hosts.rs."""

import os
import re
import time
import urllib.request

import anthropic
import openai

from harness import check, run

url = os.environ["ABRIDGE_URL"]
model = "claude-opus-4-5@20251101"
vertex = anthropic.AnthropicVertex(
    region="us-east5", project_id="p", access_token="t", base_url=f"{url}/v1", max_retries=0
)
bedrock = anthropic.AnthropicBedrock(api_key="k", aws_region="us-east-1", base_url=url, max_retries=0)
foundry = anthropic.AnthropicFoundry(api_key="k", base_url=f"{url}/anthropic", max_retries=0)
names = {vertex: model, bedrock: "us.anthropic.claude-opus-4-5-20251101-v1:0", foundry: "text"}
call = {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {}}
messages = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": [call]},
    {"role": "user", "content": "never mind"},
]
tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
ask = {"max_tokens": 100, "messages": messages, "tools": tools}

chat_call = {"id": "toolu_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
rows = [messages[0], {"role": "assistant", "content": None, "tool_calls": [chat_call]}, messages[2]]
items = [messages[0], {"type": "function_call", "call_id": "toolu_a", "name": "f", "arguments": "{}"}, messages[2]]
azure = {"api_key": "k", "max_retries": 0}
chat = openai.AzureOpenAI(azure_endpoint=url, api_version="2024-10-21", **azure).chat.completions
responses = [
    openai.AzureOpenAI(azure_endpoint=url, api_version="2025-03-01-preview", **azure),
    openai.AzureOpenAI(base_url=f"{url}/openai/v1/", api_version="preview", **azure),
    openai.OpenAI(base_url=f"{url}/openai/v1/", default_headers={"api-key": "k"}, **azure),
]


def billed(name):
    """The tokens, input and output, that abridge has counted for a model."""
    with urllib.request.urlopen(f"{url}/abridge/metrics", timeout=30) as answer:
        text = answer.read().decode()
    line = r'abridge_billed_tokens_total\{[^}]*gen_ai_request_model="%s",type="%s"\} (\d+)'
    found = [re.search(line % (re.escape(name), kind), text) for kind in ["input", "output"]]
    return [int(match[1]) if match else 0 for match in found]


def counts(name, ask):
    """Asks once, and waits until the usage that the upstream reports, 3 and 2 tokens, is counted."""
    before = billed(name)
    answer = ask()
    expected = [before[0] + 3, before[1] + 2]
    for _ in range(100):
        if billed(name) == expected:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{name}: {billed(name)} and not {expected}")


def is_patched(raw):
    assert raw.headers["x-abridge-edits"] == "patch=1", raw.headers
    return raw.parse()


@check
def a_call_without_a_result_is_patched_at_each_host_of_claude():
    for client, name in names.items():
        raw = counts(name, lambda: client.messages.with_raw_response.create(model=name, **ask))
        assert is_patched(raw).content[0].text == "café 🦀"


@check
def streams_come_through_each_host_of_claude():
    for client, name in names.items():
        events = counts(name, lambda: list(client.messages.create(model=name, stream=True, **ask)))
        assert [event.type for event in events][-1] == "message_stop", events
        texts = [event.delta.text for event in events if event.type == "content_block_delta"]
        assert "".join(texts) == "café 🦀", texts


@check
def vertex_counts():
    assert vertex.messages.count_tokens(model=model, messages=messages[:1]).input_tokens == 30


@check
def azure_chat_answers_for_a_deployment():
    raw = counts("text", lambda: chat.with_raw_response.create(model="text", messages=rows))
    assert is_patched(raw).choices[0].message.content == "café 🦀"
    chunks = counts("text", lambda: list(chat.create(model="text", messages=rows, stream=True)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "café 🦀"


@check
def azure_responses_answer_at_each_of_their_paths():
    for client in responses:
        raw = counts("text", lambda: client.responses.with_raw_response.create(model="text", input=items))
        assert is_patched(raw).output_text == "café 🦀"
        events = counts("text", lambda: list(client.responses.create(model="text", input=items, stream=True)))
        assert events[-1].type == "response.completed", events
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "café 🦀"


run()
