"""A session of an agent, for both tests of LiteLLM."""


def result(n):
    return "".join(f"{n}: line {line} caf\u00e9 \U0001f980 \"{line * 7919 % 1000}\"\n" for line in range(2000))


def session(turns, rounds):
    """The messages of an agent in its last turn: each turn is a question and some calls."""
    messages = [{"role": "system", "content": "be brief"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn}"})
        for n in range(rounds):
            call = {"id": f"c{turn}_{n}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{turn}_{n}", "content": result(turn * rounds + n)})
        if turn + 1 < turns:
            messages.append({"role": "assistant", "content": f"answer {turn}"})
    return messages
