"""Tools, forms, probabilities and several choices, by the official OpenAI client against the daemon at HOB_URL (see run.sh).

The model is tiny: what it says is worth nothing, but every call and every form must be valid. All that it may choose from is
short, so that no answer is cut off.
"""

import json
import math
import os
import uuid
from typing import Literal

import openai
import pydantic
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


def check_call(name, arguments):
    arguments = json.loads(arguments)
    if name == "light":
        assert set(arguments) == {"room", "on"}
        assert arguments["room"] in ROOMS and isinstance(arguments["on"], bool)
    else:
        assert name == "lock.door"
        assert set(arguments) == {"door"} and arguments["door"] in ("front", "back")


def test_a_required_call_is_valid(client):
    choice = ask(client, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.id.startswith("call_") and call.type == "function"
        check_call(call.function.name, call.function.arguments)


def test_a_named_tool_is_called(client):
    choice = {"type": "function", "function": {"name": "lock.door"}}
    message = ask(client, tools=TOOLS, tool_choice=choice).choices[0].message
    assert {call.function.name for call in message.tool_calls} == {"lock.door"}


def test_one_call_at_most_if_asked_for(client):
    message = ask(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
    assert len(message.tool_calls) == 1


def test_a_streamed_call_is_put_together_to_a_valid_one(client):
    calls = {}
    chunks = list(ask(client, tools=TOOLS, tool_choice="required", stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    for chunk in chunks:
        pieces = chunk.choices[0].delta.tool_calls or []
        assert len(pieces) <= 1
        for piece in pieces:
            assert piece.function.arguments, "no piece is empty"
            if piece.id:
                assert piece.index == len(calls) and piece.function.name
                calls[piece.index] = [piece.function.name, ""]
            calls[piece.index][1] += piece.function.arguments
        assert not (calls and chunk.choices[0].delta.content), "text behind a call"
    assert calls
    for name, arguments in calls.values():
        check_call(name, arguments)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_helper_follows_a_streamed_call(client):
    options = {"model": "tiny", "temperature": 0, "max_tokens": 200, "messages": [user("Lock the door.")]}
    with client.chat.completions.stream(tools=TOOLS, tool_choice="required", **options) as stream:
        kinds = {event.type for event in stream}
        completion = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    for call in completion.choices[0].message.tool_calls:
        check_call(call.function.name, call.function.arguments)


def test_a_tools_result_goes_on_from_its_call(client):
    messages = [user(f"{uuid.uuid4()} Is the light on?")]
    first = ask(client, messages=messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": '{"on":true}'} for call in message.tool_calls]
    second = ask(client, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=12)
    # The opening of the answer may be cut differently when the answer follows it as text.
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 4
    assert second.choices[0].message.tool_calls is None


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


class Lamp(pydantic.BaseModel):
    room: Literal["kitchen", "hall", "attic"]
    on: bool


def test_an_answer_parses_to_its_model(client):
    completion = client.chat.completions.parse(
        model="tiny",
        messages=[user(f"{uuid.uuid4()} Which lamp is on?")],
        response_format=Lamp,
        temperature=0,
        max_tokens=200,
    )
    lamp = completion.choices[0].message.parsed
    assert lamp.room in ROOMS
    assert completion.choices[0].finish_reason == "stop"


def test_a_streamed_answer_parses_to_its_model(client):
    options = {"model": "tiny", "temperature": 0, "max_tokens": 200, "messages": [user("Which lamp is off?")]}
    with client.chat.completions.stream(response_format=Lamp, **options) as stream:
        assert stream.get_final_completion().choices[0].message.parsed.room in ROOMS


def test_a_grammar_of_the_clients_own_is_obeyed(client):
    answer = ask(client, extra_body={"grammar": 'root ::= "yes" | "no"'})
    assert answer.choices[0].message.content in ("yes", "no")


def test_probabilities_are_those_of_the_tokens(client):
    choice = ask(client, max_tokens=8, logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    assert tokens and choice.logprobs.refusal is None
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1.001
        # The likeliest is taken.
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert token.bytes == token.top_logprobs[0].bytes
    said = b"".join(bytes(token.bytes) for token in tokens).decode(errors="ignore")
    assert said.startswith(choice.message.content)


def test_streamed_probabilities_are_the_same(client):
    messages = [user(f"{uuid.uuid4()} Count to three.")]
    options = {"messages": messages, "max_tokens": 8, "logprobs": True, "top_logprobs": 1}
    whole = ask(client, **options).choices[0].logprobs.content
    chunks = ask(client, stream=True, **options)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [token for part in parts if part for token in part.content]
    assert whole
    assert [token.bytes for token in streamed] == [token.bytes for token in whole]


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
