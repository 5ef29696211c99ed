"""The anthropic package of PyPI through abridge. One line a check; the exit status says whether all of them held.

What the upstream answers to which model is in tests/clients.rs.
"""

import anthropic

from harness import check, raises, refusal, run

client = anthropic.Anthropic(max_retries=0, timeout=30)
question = [{"role": "user", "content": "go"}]
call = {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {}}
dangling = [*question, {"role": "assistant", "content": [call]}, {"role": "user", "content": "never mind"}]
tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]


@check
def a_message_in_one_piece():
    answer = client.messages.create(model="text", max_tokens=100, messages=question)
    assert answer.content[0].text == "café 🦀" and answer.stop_reason == "end_turn", answer
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 2)


@check
def a_message_in_pieces():
    events = list(client.messages.create(model="text", max_tokens=100, messages=question, stream=True))
    pieces = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert pieces == ["café ", "🦀"], pieces
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    with client.messages.stream(model="text", max_tokens=100, messages=question) as stream:
        answer = stream.get_final_message()
    assert answer.content[0].text == "café 🦀" and answer.stop_reason == "end_turn", answer


@check
def a_call_without_a_result_is_patched_for_a_strict_upstream():
    ask = {"model": "text", "max_tokens": 100, "messages": dangling, "tools": tools}
    raw = client.messages.with_raw_response.create(**ask)
    assert raw.parse().content[0].text == "café 🦀"
    assert raw.headers["x-abridge-edits"] == "patch=1" and raw.headers["x-abridge-request-id"]
    off = {"x-abridge": "off"}
    error = raises(anthropic.BadRequestError, lambda: client.messages.create(**ask, extra_headers=off))
    assert error.response.text == refusal(400), error.response.text


@check
def errors_come_back_as_they_were():
    kinds = {
        "401 Unauthorized": anthropic.AuthenticationError,
        "429 Too Many Requests": anthropic.RateLimitError,
        "500 Internal Server Error": anthropic.InternalServerError,
        "529 Overloaded": anthropic.InternalServerError,
    }
    for model, kind in kinds.items():
        for stream in (False, True):
            ask = {"model": model, "max_tokens": 100, "messages": question, "stream": stream}
            error = raises(kind, lambda: client.messages.create(**ask))
            assert error.response.text == refusal(model[:3]), error.response.text
            assert error.response.headers["retry-after"] == "7"
            assert "x-abridge-error" not in error.response.headers
    wrong = client.with_options(api_key="sk-wrong")
    raises(
        anthropic.AuthenticationError,
        lambda: wrong.messages.create(model="text", max_tokens=100, messages=question),
    )


run()
