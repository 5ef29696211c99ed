"""The mcp package of PyPI at abridge's MCP server. One line a check; the exit status says whether all of them held."""

import asyncio
import os
import re

import httpx2
import openai
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from harness import check, run

client = openai.OpenAI(max_retries=0, timeout=30)
proxy = str(client.base_url).removesuffix("/v1/")


def over_http():
    """A connection that shows the key of the conversations, as `list` and `search` want it."""
    shown = httpx2.AsyncClient(headers={"authorization": f"Bearer {client.api_key}"})
    return streamable_http_client(proxy + "/abridge/mcp", http_client=shown)


over_stdio = StdioServerParameters(
    command=os.environ["ABRIDGE"], args=["mcp", "--at", proxy, "--key-env", "OPENAI_API_KEY"],
    env={"OPENAI_API_KEY": client.api_key})
log = "\n".join(f"line {n}: {'=' * 60}" for n in range(2000)).replace("line 1234:", "line 1234, where it failed:")


def truncated():
    """Has a long result truncated; nothing else is in the store."""
    call = {"id": "a", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
    client.chat.completions.create(model="text", messages=[
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": log},
    ])


async def use(server):
    """Finds the line that was cut out: the names of the tools, what was found, and the line as it was recalled."""
    async with Client(server) as tools:
        async def text(name, **arguments):
            return "".join(part.text for part in (await tools.call_tool(name, arguments)).content)

        names = sorted(tool.name for tool in (await tools.list_tools()).tools)
        found = await text("search", text="where it failed")
        [handle] = set(re.findall(r"\b[0-9a-z]{16,}\b", await text("list")))
        return names, found, await text("recall", handle=handle, lines="1235-1235")


def finds_it(server):
    truncated()
    names, found, recalled = asyncio.run(use(server))
    assert names == ["list", "recall", "search"], names
    assert "line 1234, where it failed" in found, found
    assert recalled.startswith("line 1234, where it failed: ==="), recalled


@check
def what_was_taken_out_is_listed_found_and_recalled_over_http():
    finds_it(over_http())


@check
def what_was_taken_out_is_listed_found_and_recalled_over_a_command():
    finds_it(over_stdio)


run()
