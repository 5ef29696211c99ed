"""The whole proxy of LiteLLM with the settings in the argument: its guardrail has abridge shorten what a model is sent. What the
model answers is in gateways.rs. An agent's session grows from request to request, and the model reads originals back.
"""

import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai

from harness import check, run
from litellm_session import session

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
key = "sk-" + secrets.token_hex(32)
environment = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
program = pathlib.Path(sys.executable).with_name("litellm")
command = [program, "--config", sys.argv[1], "--host", "127.0.0.1", "--port", str(port)]
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=60)
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


def ask(messages, **more):
    answer = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools, **more)
    if more.get("stream"):
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    return answer.choices[0].message.content


def hash_in(row):
    return row.split("hash=")[1][:24]


@check
def an_agents_session_through_the_proxy_keeps_its_prefix_and_its_originals_are_read_back():
    before = []
    for turns in (1, 2, 3, 4):
        messages = session(turns, 3)
        originals = [message["content"] for message in messages if message["role"] == "tool"]
        rows = ask(messages).split("\x1e")
        shortened = [i for i, row in enumerate(rows) if row != originals[i]]
        # All results but those of the exchange that LiteLLM withholds.
        assert shortened == list(range(len(originals) - 1)), shortened
        # A row that was shortened in an earlier request is the same in this one.
        for i, row in before:
            assert rows[i] == row, i
        before = [(i, rows[i]) for i in shortened]
        for i in shortened:
            question = [*messages, {"role": "user", "content": f"read {hash_in(rows[i])}"}]
            assert ask(question, stream=i % 2 == 1) == originals[i], i


@check
def an_unknown_hash_is_not_read():
    answer = ask([*session(2, 2), {"role": "user", "content": "read " + "0" * 24}])
    assert "was not produced" in answer, answer


log = tempfile.TemporaryFile("w+")
with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as proxy:
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5)
                break
            except (OSError, urllib.error.URLError):
                assert proxy.poll() is None, (log.seek(0), log.read())
                time.sleep(0.5)
        run()
    finally:
        proxy.terminate()
