#!/usr/bin/env python3
"""How much of each prompt a real llama.cpp server serves from its prompt cache: direct, and through abridge.

    benches/cache/cached.py [--messages] LLAMA_SERVER MODEL.gguf [ABRIDGE]

With --messages, the agent speaks Anthropic Messages instead of Chat Completions. Plays logs.json, which was written for this, as an agent's loop would send it, once for each way, each time against a server that
has just been started, and prints what that says of each request: prompt tokens, and of those the ones it had cached.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRANSCRIPT = Path(__file__).resolve().with_name("logs.json")
WINDOW = 16384

# Small thresholds, so that a session of 7,000 tokens shows what a long one would. A model without instruction tuning
# does not end a summary by itself, so a grammar ends all answers; what they say does not matter here.
CLEAR = '[policy]\nedits = ["patch_tool_calls", "clear_tool_results"]\n[clear_tool_results]\nwhen = "any"\ntrigger = {{ tokens = 4000 }}\nkeep = {{ results = 3 }}\nfrontier = "{}"\n'
SUMMARIZE = '[policy]\nedits = ["patch_tool_calls", "summarize"]\n[summarize]\ntrigger = { tokens = 4000 }\nmax_tokens = 600\ntimeout = "300s"\n[summarize.retry]\nmax_retries = 1\n'
WAYS = {"unedited": None, "sticky": CLEAR.format("sticky"), "sliding": CLEAR.format("sliding"), "summarised": SUMMARIZE}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url, process):
    for _ in range(600):
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} has ended")
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"{url} does not answer")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:
        return json.load(answer), answer.headers.get("x-abridge-edits", "")


def requests(transcript):
    """The bodies that the agent sent: one before each message of the model, and one at the end."""
    messages = transcript["messages"]
    ends = [n for n, message in enumerate(messages) if n and message["role"] == "assistant"] + [len(messages)]
    for end in ends:
        yield {**transcript, "messages": messages[:end], "max_tokens": 4, "temperature": 0}


def in_messages(chat):
    """A body of Chat Completions as one of Anthropic Messages."""
    system, *rest = chat["messages"]
    messages = []
    for message in rest:
        role, blocks = message["role"], [{"type": "text", "text": message["content"]}]
        if role == "tool":
            role, blocks = "user", [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]
        for call in message.get("tool_calls", []):
            function = call["function"]
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])})
        messages.append({"role": role, "content": blocks})
    tools = [{"name": tool["function"]["name"], "description": tool["function"]["description"], "input_schema": tool["function"]["parameters"]} for tool in chat["tools"]]
    return {**chat, "system": system["content"], "messages": messages, "tools": tools}


def play(base, transcript, speaks_messages):
    rows = []
    for body in requests(transcript):
        if speaks_messages:
            answer, edits = post(f"{base}/messages", in_messages(body))
            usage = answer["usage"]
            cached = usage["cache_read_input_tokens"]
            prompt = usage["input_tokens"] + cached
        else:
            answer, edits = post(f"{base}/chat/completions", body)
            usage = answer["usage"]
            cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", answer.get("timings", {}).get("cache_n", 0))
            prompt = usage["prompt_tokens"]
        rows.append((prompt, cached, edits))
    return rows


def main():
    arguments = sys.argv[1:]
    speaks_messages = arguments[0] == "--messages"
    server, model, *others = arguments[speaks_messages:]
    abridge = others[0] if others else str(ROOT / "target/dist/abridge")
    transcript = json.loads(TRANSCRIPT.read_text())
    played = {}
    for way, policy in WAYS.items():
        port = free_port()
        processes = [subprocess.Popen(
            [server, "-m", model, "-c", str(WINDOW), "-np", "1", "--grammar", "root ::= [a-zA-Z ,.]{200,600}", "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
        with tempfile.TemporaryDirectory() as scratch:
            try:
                wait_for(f"http://127.0.0.1:{port}/health", processes[0])
                base = f"http://127.0.0.1:{port}/v1"
                if policy is not None:
                    ours = free_port()
                    config = Path(scratch, "proxy.toml")
                    config.write_text(
                        f'[server]\nlisten = "127.0.0.1:{ours}"\n[upstream]\nurl = "{base}"\n[store]\npath = "{scratch}/store.redb"\n{policy}')
                    processes.append(subprocess.Popen([abridge, "serve", "--config", config], stderr=subprocess.DEVNULL if not os.environ.get("SHOW_LOG") else None))
                    wait_for(f"http://127.0.0.1:{ours}/abridge/healthz", processes[1])
                    base = f"http://127.0.0.1:{ours}/v1"
                played[way] = play(base, transcript, speaks_messages)
            finally:
                for process in reversed(processes):
                    process.terminate()
                    process.wait()
    print("| request | " + " | ".join(f"{way}: prompt, cached" for way in played) + " |")
    print("|---|" + "---|" * len(played))
    for n, row in enumerate(zip(*played.values()), 1):
        print(f"| {n} | " + " | ".join(f"{prompt:,}, {cached / max(prompt, 1):.0%}" + (f" ({edits})" if edits else "") for prompt, cached, edits in row) + " |")
    totals = [(sum(prompt for prompt, *_ in rows), sum(cached for _, cached, _ in rows)) for rows in played.values()]
    print("| all | " + " | ".join(f"{prompt:,}, {cached / prompt:.0%}; computed {prompt - cached:,}" for prompt, cached in totals) + " |")


if __name__ == "__main__":
    main()
