"""The guardrail `headroom` of LiteLLM, pointed at each abridge whose URL is an argument, in turn. An agent's session grows from
request to request; the model reads an original with the tool that LiteLLM adds. The service's key is in ABRIDGE_TOKEN.
"""

import asyncio
import json
import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from litellm.proxy.guardrails.guardrail_hooks.headroom.headroom import HeadroomGuardrail
from litellm.types.proxy.guardrails.guardrail_hooks.headroom import HEADROOM_REQUEST_CONTEXT_KEY

from harness import check, run
from litellm_session import session

guardrails = [
    HeadroomGuardrail(api_base=base, api_key=os.environ["ABRIDGE_TOKEN"], guardrail_name=f"abridge{n}", timeout=30)
    for n, base in enumerate(sys.argv[1:])
]


async def guarded(guardrail, messages, **more):
    data = {"messages": messages, "model": "gpt-4o", "metadata": {}, **more}
    inputs = {"structured_messages": json.loads(json.dumps(messages)), "texts": []}
    return data, await guardrail.apply_guardrail(inputs, data, "request")


async def retrieved(guardrail, data, hash_value):
    """What LiteLLM gives a model that calls the tool with this hash."""
    calls = {"tool_calls": [{"id": "r1", "type": "function", "name": "headroom_retrieve", "arguments": {"hash": hash_value}}]}
    response = {"choices": [{"message": {"content": None}}]}
    more = {HEADROOM_REQUEST_CONTEXT_KEY: data[HEADROOM_REQUEST_CONTEXT_KEY]}
    plan = await guardrail.async_build_agentic_loop_plan(
        calls, "gpt-4o", [], response, None, {}, None, False, more
    )
    return plan.request_patch.messages[-1]["content"]


@check
def an_agents_session_keeps_its_prefix_and_its_originals_are_read_back():
    async def play():
        before, n = [], 0
        for turns in (1, 2, 3, 4):
            for rounds in (3,):
                messages = session(turns, rounds)
                guardrail, n = guardrails[n % len(guardrails)], n + 1
                data, out = await guarded(guardrail, messages)
                rows = out["structured_messages"]
                assert [row["role"] for row in rows] == [row["role"] for row in messages]
                shortened = [i for i, row in enumerate(rows) if row != messages[i]]
                assert all(messages[i]["role"] == "tool" for i in shortened), shortened
                # All results but those of the exchange that LiteLLM withholds.
                assert len(shortened) == turns * rounds - 1, (turns, shortened)
                # A row that was shortened in an earlier request is the same in this one.
                for i, row in before:
                    assert rows[i] == row, i
                before = [(i, rows[i]) for i in shortened]
                assert [tool["function"]["name"] for tool in out["tools"]] == ["headroom_retrieve"]
                for i in shortened:
                    hash_value = rows[i]["content"].split("hash=")[1][:24]
                    other = guardrails[n % len(guardrails)]
                    assert await retrieved(other, data, hash_value) == messages[i]["content"], i
                unknown = await retrieved(guardrail, data, "0" * 24)
                assert "was not produced" in unknown, unknown

    asyncio.run(play())


@check
def what_is_asked_for_again_is_the_same_from_every_abridge():
    async def play():
        messages = session(3, 2)
        outs = [(await guarded(guardrail, messages))[1] for guardrail in guardrails + guardrails]
        assert all(out["structured_messages"] == outs[0]["structured_messages"] for out in outs)

    asyncio.run(play())


@check
def a_bypass_gives_everything_back():
    async def play():
        messages = session(2, 2)
        headers = {"headers": {"x-headroom-bypass": "true"}}
        _, out = await guarded(guardrails[0], messages, proxy_server_request=headers)
        assert out["structured_messages"] == messages and "tools" not in out

    asyncio.run(play())


run()
