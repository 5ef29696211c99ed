"""The SDK of LiteLLM: it reads OPENAI_BASE_URL and OPENAI_API_KEY; `openai/` says which protocol is spoken.

    OPENAI_BASE_URL=http://127.0.0.1:8787/v1 python litellm_sdk.py
"""

import litellm

answer = litellm.completion(
    model="openai/gpt-4o-mini",
    messages=[{"role": "user", "content": "Say hello."}],
)
print(answer.choices[0].message.content)
