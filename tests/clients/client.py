"""The openai package of PyPI through abridge. One line a check; the exit status says whether all of them held.

What the upstream answers to which model is in tests/clients.rs.
"""

import asyncio
import json
import threading
import urllib.error
import urllib.request
import uuid

import openai

from harness import check, raises, refusal, run

client = openai.OpenAI(max_retries=0, timeout=30)
base = str(client.base_url).rstrip("/")
question = [{"role": "user", "content": "go"}]
tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def get(path):
    """Asks the upstream, through abridge, without the client that is tested."""
    request = urllib.request.Request(base + path, headers={"authorization": "Bearer sk-client"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@check
def an_answer_in_one_piece():
    answer = client.chat.completions.create(model="text", messages=question)
    assert answer.choices[0].message.content == "café 🦀", answer
    assert answer.usage.total_tokens == 5


@check
def an_answer_in_pieces():
    stream = client.chat.completions.create(
        model="text", messages=question, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "café 🦀", text
    assert chunks[-1].usage.total_tokens == 5 and chunks[-2].choices[0].finish_reason == "stop"


@check
def a_piece_is_there_before_the_next_one_is_made():
    name = uuid.uuid4().hex
    stream = iter(client.chat.completions.create(model="paced", messages=question, stream=True, user=name))
    assert next(stream).choices[0].delta.content == "first"
    assert get("/release?" + name)
    assert next(stream).choices[0].delta.content == "second"


@check
def tool_calls_in_one_piece_and_in_pieces():
    whole = client.chat.completions.create(model="tools", messages=question, tools=tools)
    calls = [(call.id, call.function.arguments) for call in whole.choices[0].message.tool_calls]
    assert calls == [("call_a", '{"x": 1}'), ("call_b", "{}")], calls
    with client.chat.completions.stream(model="tools", messages=question, tools=tools) as stream:
        whole = stream.get_final_completion()
    calls = [(call.id, call.function.arguments) for call in whole.choices[0].message.tool_calls]
    assert calls == [("call_a", '{"x": 1}'), ("call_b", "{}")], calls


@check
def a_call_without_a_result_is_patched_for_a_strict_upstream():
    asked = client.chat.completions.create(model="tools", messages=question, tools=tools).choices[0].message
    history = [*question, asked, {"role": "tool", "tool_call_id": "call_a", "content": "1"}, *question]
    raw = client.chat.completions.with_raw_response.create(model="text", messages=history, tools=tools)
    assert raw.parse().choices[0].message.content == "café 🦀"
    assert raw.headers["x-abridge-edits"] == "patch=1" and raw.headers["x-abridge-request-id"]

    # Without abridge's help the upstream refuses it, and its refusal comes back as it wrote it.
    error = raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model="text", messages=history, extra_headers={"x-abridge": "off"}),
    )
    assert error.response.text == refusal(400), error.response.text


@check
def responses_in_one_piece_and_in_pieces():
    answer = client.responses.create(model="text", input="go")
    assert answer.output_text == "café 🦀" and answer.usage.total_tokens == 5, answer
    events = list(client.responses.create(model="text", input="go", stream=True))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert pieces == ["café ", "🦀"], pieces
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert events[-1].response.output_text == "café 🦀" and events[-1].response.usage.total_tokens == 5


@check
def a_call_without_an_output_is_patched_in_responses():
    call = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "go"}, call, {"role": "user", "content": "never mind"}]
    raw = client.responses.with_raw_response.create(model="text", input=items)
    assert raw.parse().output_text == "café 🦀"
    assert raw.headers["x-abridge-edits"] == "patch=1"
    error = raises(
        openai.BadRequestError,
        lambda: client.responses.create(model="text", input=items, extra_headers={"x-abridge": "off"}),
    )
    assert error.response.text == refusal(400), error.response.text
    for stream in (False, True):
        error = raises(
            openai.RateLimitError,
            lambda: client.responses.create(model="429 Too Many Requests", input="go", stream=stream),
        )
        assert error.response.text == refusal(429) and error.response.headers["retry-after"] == "7"


@check
def response_headers_are_the_upstreams():
    raw = client.chat.completions.with_raw_response.create(model="text", messages=question)
    names = sorted(raw.headers.keys())
    assert names == ["content-length", "content-type", "x-request-id"], names
    assert raw.request_id == "req_1"


@check
def errors_come_back_as_they_were():
    kinds = {
        "400 Bad Request": openai.BadRequestError,
        "401 Unauthorized": openai.AuthenticationError,
        "404 Not Found": openai.NotFoundError,
        "429 Too Many Requests": openai.RateLimitError,
        "500 Internal Server Error": openai.InternalServerError,
        "503 Service Unavailable": openai.InternalServerError,
    }
    for status, kind in kinds.items():
        for stream in (False, True):
            error = raises(
                kind, lambda: client.chat.completions.create(model=status, messages=question, stream=stream)
            )
            assert error.response.text == refusal(status[:3]), error.response.text
            assert error.response.headers["retry-after"] == "7"
            assert error.code == "c" + status[:3] and error.request_id == "req_1"
            assert "x-abridge-error" not in error.response.headers
    raises(openai.AuthenticationError, lambda: client.with_options(api_key="sk-wrong").models.list())


@check
def a_time_out_of_the_client_cancels_the_upstream():
    name = uuid.uuid4().hex
    hasty = client.with_options(timeout=1)
    raises(openai.APITimeoutError, lambda: hasty.chat.completions.create(model="silent", messages=question, user=name))
    assert get("/gone?" + name)


@check
def closing_a_stream_cancels_the_upstream():
    name = uuid.uuid4().hex
    stream = client.chat.completions.create(model="endless", messages=question, stream=True, user=name)
    assert next(iter(stream)).choices[0].delta.content == "first"
    stream.close()
    assert get("/gone?" + name)


@check
def cancelling_a_task_cancels_the_upstream():
    async def run(name, model, stream):
        async with openai.AsyncOpenAI(max_retries=0, timeout=30) as aio:
            started = asyncio.Event()

            async def ask():
                answer = await aio.chat.completions.create(model=model, messages=question, stream=stream, user=name)
                async for _ in answer:
                    started.set()

            task = asyncio.create_task(ask())
            if stream:
                await asyncio.wait_for(started.wait(), 30)
            else:
                await asyncio.to_thread(get, "/came?" + name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    for model, stream in (("silent", False), ("endless", True)):
        name = uuid.uuid4().hex
        asyncio.run(run(name, model, stream))
        assert get("/gone?" + name)


@check
def a_stream_that_breaks_off_is_an_error():
    stream = client.chat.completions.create(model="broken", messages=question, stream=True)
    error = raises(Exception, lambda: list(stream))
    assert not isinstance(error, (AssertionError, json.JSONDecodeError)), repr(error)


@check
def models_and_files_pass():
    assert [model.id for model in client.models.list()] == ["text"]
    assert client.files.create(file=("a.txt", b"what the file holds"), purpose="batch").status == "true"


@check
def many_at_a_time():
    answers = []

    def ask():
        stream = client.chat.completions.create(model="text", messages=question, stream=True)
        answers.append("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["café 🦀"] * 24, answers


run()
