"""google-genai through abridge. What the upstream answers is in gemini.rs."""

import asyncio
import os

from google import genai
from google.genai import errors, types

from harness import check, raises, run

options = types.HttpOptions(base_url=os.environ["ABRIDGE_URL"], api_version="v1beta")
client = genai.Client(api_key="k", http_options=options)
model = "gemini-2.5-pro"
call = types.Part(function_call=types.FunctionCall(name="f", args={}))
contents = [
    types.Content(role="user", parts=[types.Part(text="go")]),
    types.Content(role="model", parts=[call]),
    types.Content(role="user", parts=[types.Part(text="never mind")]),
]


@check
def a_call_without_a_result_is_patched():
    answer = client.models.generate_content(model=model, contents=contents)
    assert answer.text == "café 🦀"
    assert answer.usage_metadata.prompt_token_count == 3
    assert answer.sdk_http_response.headers["x-abridge-edits"] == "patch=1", answer.sdk_http_response.headers


@check
def streams_come_through():
    chunks = list(client.models.generate_content_stream(model=model, contents=contents))
    assert "".join(chunk.text for chunk in chunks) == "café 🦀"


@check
def tokens_are_counted_of_what_is_sent():
    assert client.models.count_tokens(model=model, contents=contents).total_tokens == 30


@check
def a_chat_goes_on_asynchronously():
    async def chat():
        talk = client.aio.chats.create(model=model)
        return [(await talk.send_message(text)).text for text in ["hello", "and again"]]

    assert asyncio.run(chat()) == ["café 🦀", "café 🦀"]


@check
def a_refusal_is_the_upstreams():
    stranger = genai.Client(api_key="another", http_options=options)
    error = raises(errors.ClientError, lambda: stranger.models.generate_content(model=model, contents="hello"))
    assert error.code == 403, error


run()
