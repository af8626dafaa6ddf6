"""Tools, forms, probabilities and several choices, by the official OpenAI client against the daemon at HOB_URL (see run.sh).

The model is tiny: what it says is worth nothing, but every call and every form must be valid. All that it may choose from is
short, so that no answer is cut off.
"""

import os
import uuid

import openai
import pytest

OPTIONS = {"base_url": os.environ["HOB_URL"] + "/v1", "api_key": "unused", "max_retries": 0, "timeout": 300}
ROOMS = ("kitchen", "hall", "attic")


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(**OPTIONS)


def tool(name, properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"{name} it.", "parameters": parameters}}


TOOLS = [
    tool("light", {"room": {"enum": list(ROOMS)}, "on": {"type": "boolean"}}),
    tool("lock.door", {"door": {"enum": ["front", "back"]}}),
]


def ask(client, text="Switch the light in the kitchen on.", messages=None, **options):
    options = {"model": "tiny", "temperature": 0, "max_tokens": 200, **options}
    return client.chat.completions.create(messages=messages or [user(f"{uuid.uuid4()} {text}")], **options)


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "options, param",
    [
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "oven"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"tools": [tool("turn on", {})]}, "tools[0].function.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_cannot_be_had_is_named(client, options, param):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, **options)
    assert error.value.param == param


@pytest.mark.parametrize("stream", [False, True])
def test_choices_come_from_one_prefill(client, stream):
    text = f"{uuid.uuid4()} Tell a story."
    options = {"messages": [user(text)], "n": 3, "seed": 7, "temperature": 1, "max_tokens": 16}
    if stream:
        texts = ["", "", ""]
        for chunk in ask(client, stream=True, **options):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        answer = ask(client, **options)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens <= 3 * 16
        texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    again = ask(client, **{**options, "n": 1, "seed": 8})
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
