"""Claude at Vertex AI and Bedrock, and OpenAI at Azure, through abridge. What the upstream answers is in hosts.rs."""

import os

import anthropic
import openai

from harness import check, run

url = os.environ["ABRIDGE_URL"]
model = "claude-opus-4-5@20251101"
vertex = anthropic.AnthropicVertex(
    region="us-east5", project_id="p", access_token="t", base_url=f"{url}/v1", max_retries=0
)
bedrock = anthropic.AnthropicBedrock(api_key="k", aws_region="us-east-1", base_url=url, max_retries=0)
names = {vertex: model, bedrock: "us.anthropic.claude-opus-4-5-20251101-v1:0"}
call = {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {}}
messages = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": [call]},
    {"role": "user", "content": "never mind"},
]
tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
ask = {"max_tokens": 100, "messages": messages, "tools": tools}


@check
def a_call_without_a_result_is_patched_at_both():
    for client, name in names.items():
        raw = client.messages.with_raw_response.create(model=name, **ask)
        assert raw.parse().content[0].text == "café 🦀"
        assert raw.headers["x-abridge-edits"] == "patch=1", raw.headers


@check
def streams_come_through_both():
    for client, name in names.items():
        events = list(client.messages.create(model=name, stream=True, **ask))
        assert [event.type for event in events][-1] == "message_stop", events
        texts = [event.delta.text for event in events if event.type == "content_block_delta"]
        assert texts == ["café 🦀"], texts


@check
def vertex_counts():
    assert vertex.messages.count_tokens(model=model, messages=messages[:1]).input_tokens == 30


@check
def azure_answers_for_a_deployment():
    azure = openai.AzureOpenAI(azure_endpoint=url, api_key="k", api_version="2024-10-21", max_retries=0)
    answer = azure.chat.completions.create(model="text", messages=messages[:1])
    assert answer.choices[0].message.content == "café 🦀"


run()
