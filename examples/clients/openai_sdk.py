"""The openai package of PyPI: it reads OPENAI_BASE_URL and OPENAI_API_KEY.

    OPENAI_BASE_URL=http://127.0.0.1:8787/v1 python openai_sdk.py
"""

import openai

client = openai.OpenAI()
answer = client.chat.completions.create(
    model="gpt-4o-mini",
    messages=[{"role": "user", "content": "Say hello."}],
)
print(answer.choices[0].message.content)
