"""Judges that are not ours of what abridge sent to strict upstreams: lines of {"name", "body"} on standard input.

For `mistral`, mistral-common validates each conversation as Mistral's servers do. For `bedrock`, LiteLLM translates it, and what
Converse asks of calls, results and texts is checked of the translation. For the others, chat templates out of the package `trl`
are rendered as servers render them. Says how many were judged, and which were refused.
"""

import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import pathlib
import re
import sys


def mistral():
    from mistral_common.protocol.instruct import validator
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    names = ["MistralRequestValidatorV5", "MistralRequestValidatorV7", "MistralRequestValidatorV11", "MistralRequestValidatorV13"]
    known = [getattr(validator, name) for name in names if hasattr(validator, name)]
    # Older versions ask whether the last message is to be continued.
    more = [False] * (len(inspect.signature(known[0].validate_messages).parameters) - 2)
    judges = [judge(mode=validator.ValidationMode.serving) for judge in known]

    def judge(body):
        ids = [call.get("id") for message in body["messages"] for call in message.get("tool_calls") or []]
        if not all(ids) or not body["messages"] or body["messages"][0]["role"] not in ("system", "user"):
            return None  # nothing is put before the first message, and a missing result has the id of its call
        try:
            request = ChatCompletionRequest.from_openai(messages=body["messages"], model="m")
        except Exception as error:  # what the types of mistral-common do not have is no order of messages
            return None if "validation error" in str(error) or isinstance(error, (AttributeError, KeyError, TypeError, ValueError)) else error
        for judge in judges:
            try:
                judge.validate_messages(request.messages, *more)
            except Exception as error:
                # What the models do not take, and requests that end with the model, are no matter of form.
                return None if any(words in str(error) for words in ("content chunk types", "Expected last role", "at least one message", "Function name was", "audio chunks")) else error
        return ""

    return judge, "mistral-common " + importlib.metadata.version("mistral-common")


def bedrock():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    from litellm.litellm_core_utils.prompt_templates.factory import _bedrock_converse_messages_pt as translated

    logging.getLogger("LiteLLM").setLevel(logging.ERROR)

    def judge(body):
        messages = [message for message in body["messages"] if message.get("role") not in ("system", "developer")]
        calls = [call for message in messages for call in message.get("tool_calls") or []]
        if not all(call.get("id") and "function" in call for call in calls) or any(message.get("role") == "function" for message in messages):
            return None  # a missing result has the id of its call, and Bedrock has functions alone
        try:
            messages = translated(messages=messages, model="anthropic.claude-sonnet-4-5-v1:0", llm_provider="bedrock_converse")
        except Exception:  # images by their addresses, and parts that Bedrock does not have
            return None
        if not messages or messages[0]["role"] != "user":
            return None  # nothing is put before the first message
        called = set()
        for n, message in enumerate(messages):
            answered = {part["toolResult"]["toolUseId"] for part in message["content"] if "toolResult" in part}
            if n and messages[n - 1]["role"] == message["role"]:
                return f"messages.{n}: roles do not alternate"
            if called - answered:
                return f"messages.{n}: expected toolResult blocks for {called - answered}"
            if answered - called:
                return f"messages.{n}: toolResult blocks without toolUse blocks: {answered - called}"
            called = {part["toolUse"]["toolUseId"] for part in message["content"] if "toolUse" in part}
            if odd := [id for id in called if not re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", id)]:
                return f"messages.{n}: toolUseId {odd}"
            if not message["content"] or any("text" in part and not part["text"].strip() for part in message["content"]):
                return f"messages.{n}: blank"
        return f"the last message lacks toolResult blocks for {called}" if called else ""

    return judge, "LiteLLM " + importlib.metadata.version("litellm") + " for Bedrock"


TEMPLATES = {
    "qwen-template": ["qwen2_5", "qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8", "glm4moe", "llama3_2"],
    # Those that ask for an order of calls and results.
    "openai": ["gptoss"],
}


def templates(names):
    import jinja2
    import jinja2.sandbox

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def of_role(message):
        return message.get("role") in ("system", "user", "assistant", "tool") and isinstance(message.get("content"), (str, type(None)))

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "2026-11-26")
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **_: json.dumps(value, ensure_ascii=ensure_ascii)
    # Without its imports, which are not installed.
    folder = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0], "chat_templates")
    rendered = {name: environment.from_string((folder / f"{name}.jinja").read_text()) for name in names}

    def judge(body):
        filled = [{key: value for key, value in message.items() if value is not None} for message in body["messages"]]
        messages = [{"content": "", **message} for message in filled]
        # Servers refuse other roles and parts before a template sees them, and Qwen's templates want a question of the user.
        if not all(map(of_role, messages)) or not any(message["role"] == "user" and message["content"] for message in messages):
            return None
        for message in messages:
            for call in message.get("tool_calls") or []:
                if "function" not in call or not isinstance(call["function"].get("arguments"), str):
                    return None
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        n_calls = max((len(message.get("tool_calls") or []) for message in messages), default=0)
        for name, template in rendered.items():
            if name.startswith("llama") and n_calls > 1:
                continue  # it takes one call at a time, whatever the form
            try:
                template.render(messages=messages, tools=None, add_generation_prompt=True, bos_token="", eos_token="")
            except jinja2.exceptions.TemplateError as error:
                return f"{name}: {error}"
        return ""

    return judge, f"{len(names)} templates of trl " + importlib.metadata.version("trl")


def main(vendor):
    if vendor == "mistral":
        judge, by = mistral()
    elif vendor == "bedrock":
        judge, by = bedrock()
    elif vendor in TEMPLATES:
        judge, by = templates(TEMPLATES[vendor])
    else:
        print("no judge but ours")
        return 0
    judged, refused = 0, []
    for line in sys.stdin:
        line = json.loads(line)
        try:
            answer = judge(line["body"])
        except json.JSONDecodeError as error:
            answer = f"arguments: {error}"
        judged += answer is not None
        if answer:
            refused.append(f"{line['name']}: {answer}")
    print(f"{by} judged {judged}, refused {len(refused)}", *refused, sep="\n")
    return 1 if refused else 0


sys.exit(main(sys.argv[1]))
