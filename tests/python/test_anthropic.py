"""The official Anthropic client against a running daemon at HOB_URL (see run.sh): messages, tools, forms, counting.

The model is tiny: what it says is worth nothing, but every block, every event and every number must be valid. All that it may
choose from is short, so that no answer is cut off.
"""

import asyncio
import os
import uuid
from typing import Literal

import anthropic
import pydantic
import pytest

OPTIONS = {"base_url": os.environ["HOB_URL"], "api_key": "unused", "max_retries": 0, "timeout": 300}
COUNT = "Count from one to one hundred in words: one, two, three,"
ROOMS = ("kitchen", "hall", "attic")


@pytest.fixture(scope="module")
def client():
    return anthropic.Anthropic(**OPTIONS)


def tool(name, properties):
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": f"{name} it.", "input_schema": schema}


TOOLS = [
    tool("light", {"room": {"enum": list(ROOMS)}, "on": {"type": "boolean"}}),
    tool("lock", {"door": {"enum": ["front", "back"]}}),
]


def user(content):
    return {"role": "user", "content": content}


def fresh(text=COUNT):
    """`text` with a beginning that no request before had."""
    return f"{uuid.uuid4()} {text}"


def question(text=None, messages=None, **options):
    messages = messages or [user(text or fresh())]
    # This client no longer has a name for the temperature; the service and hob do.
    extra = {"temperature": 0}
    return {"model": "tiny", "max_tokens": 12, "messages": messages, "extra_body": extra, **options}


def ask(client, *arguments, **options):
    return client.messages.create(**question(*arguments, **options))


def n_prompt(usage):
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def check_call(block):
    assert block.type == "tool_use" and block.id
    if block.name == "light":
        assert set(block.input) == {"room", "on"}
        assert block.input["room"] in ROOMS and isinstance(block.input["on"], bool)
    else:
        assert block.name == "lock"
        assert set(block.input) == {"door"} and block.input["door"] in ("front", "back")


def test_an_answer_has_the_shape_the_client_expects(client):
    message = ask(client, model="house", text="When is the grey bin collected?")
    assert (message.type, message.role, message.model) == ("message", "assistant", "house")
    assert message.id.startswith("msg_")
    assert message._request_id
    [block] = message.content
    assert block.type == "text" and block.text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert 1 <= message.usage.output_tokens <= 12
    # The household is warm before the first question.
    assert message.usage.cache_read_input_tokens > 2500


def test_numbers_add_up_to_what_was_counted(client):
    text = fresh()
    n_tokens = client.messages.count_tokens(model="tiny", messages=[user(text)]).input_tokens
    first, second = ask(client, text).usage, ask(client, text).usage
    assert n_prompt(first) == n_prompt(second) == n_tokens
    assert (second.cache_read_input_tokens, second.cache_creation_input_tokens) == (n_tokens - 1, 0)
    assert (second.hob["reused"], second.hob["of"]) == (n_tokens - 1, n_tokens)


def test_a_conversation_goes_on_from_where_it_stood(client):
    system = [{"type": "text", "text": fresh("Be brief."), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    messages = [user("Is the oven on?")]
    first = ask(client, messages=messages, system=system)
    messages += [first.to_param(), user([{"type": "text", "text": "Since when?"}])]
    second = ask(client, messages=messages, system=system)
    held = n_prompt(first.usage) + first.usage.output_tokens - 1
    assert second.usage.cache_read_input_tokens >= held


def test_a_streamed_answer_is_the_same(client):
    text = fresh()
    # Asked once before, so that both are equally warm.
    ask(client, text)
    whole = ask(client, text)
    with client.messages.stream(**question(text)) as stream:
        kinds, said = [], ""
        for event in stream:
            kinds.append(event.type)
            said += event.text if event.type == "text" else ""
        message = stream.get_final_message()
    assert said == message.content[0].text == whole.content[0].text
    assert (message.stop_reason, n_prompt(message.usage)) == (whole.stop_reason, n_prompt(whole.usage))
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert (kinds[0], kinds[1], kinds[-1]) == ("message_start", "content_block_start", "message_stop")


def test_raw_events_come_in_their_order(client):
    events = [event.type for event in client.messages.create(stream=True, **question())]
    assert events[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(events[3:-3]) <= {"content_block_delta"}


def test_the_asynchronous_client_streams_too():
    async def say():
        async with anthropic.AsyncAnthropic(**OPTIONS) as client:
            async with client.messages.stream(**question()) as stream:
                said = [text async for text in stream.text_stream]
            return "".join(said), (await stream.get_final_message()).content[0].text

    said, whole = asyncio.run(say())
    assert said and said == whole


def test_a_stop_text_is_named(client):
    whole = ask(client, "Say: one, two, three", max_tokens=30).content[0].text
    stop = whole.split()[1]
    message = ask(client, "Say: one, two, three", max_tokens=30, stop_sequences=["never that", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == whole[: whole.index(stop)]


def test_a_demanded_call_is_valid(client):
    options = {"tools": TOOLS, "max_tokens": 200}
    message = ask(client, fresh("Light on."), tool_choice={"type": "any"}, **options)
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    check_call(call)
    message = ask(client, fresh("Light on."), tool_choice={"type": "tool", "name": "lock"}, **options)
    assert {block.name for block in message.content if block.type == "tool_use"} == {"lock"}


def test_a_streamed_call_is_put_together_to_a_valid_one(client):
    options = question(fresh("Light on."), tools=TOOLS, tool_choice={"type": "any"}, max_tokens=200)
    with client.messages.stream(**options) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert len(pieces) > 1 and all(pieces)
    assert message.stop_reason == "tool_use"
    for block in message.content:
        if block.type == "tool_use":
            check_call(block)


def test_a_tools_result_goes_on_from_its_call(client):
    messages = [user(fresh("Is the light on?"))]
    first = ask(client, messages=messages, tools=TOOLS, tool_choice={"type": "any"}, max_tokens=200)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": '{"on":true}'}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages += [first.to_param(), user([*results, {"type": "text", "text": "Well?"}])]
    second = ask(client, messages=messages, tools=TOOLS, tool_choice={"type": "none"})
    # The opening of the answer may be cut differently when the answer follows it as text.
    assert second.usage.cache_read_input_tokens >= n_prompt(first.usage) - 4
    assert all(block.type == "text" for block in second.content)


class Lamp(pydantic.BaseModel):
    room: Literal["kitchen", "hall", "attic"]
    on: bool


def test_an_answer_parses_to_its_model(client):
    options = question(fresh("Which lamp is on?"), max_tokens=200)
    message = client.messages.parse(output_format=Lamp, **options)
    assert message.parsed_output.room in ROOMS
    with client.messages.stream(output_format=Lamp, **options) as stream:
        assert stream.get_final_message().parsed_output == message.parsed_output


def test_fields_of_the_cloud_change_nothing(client):
    text = fresh()
    plain = ask(client, text)
    more = ask(
        client,
        text,
        service_tier="auto",
        metadata={"user_id": "session_1"},
        thinking={"type": "disabled"},
        cache_control={"type": "ephemeral"},
        extra_headers={"anthropic-beta": "prompt-caching-2024-07-31"},
        extra_query={"beta": "true"},
    )
    assert n_prompt(more.usage) == n_prompt(plain.usage)
    assert more.usage.cache_read_input_tokens == n_prompt(plain.usage) - 1


@pytest.mark.parametrize(
    "options, place",
    [
        ({"max_tokens": 0}, "max_tokens: "),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role: "),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type: "),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "oven"}}, "tool_choice: "),
        ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]}, "system[0]"),
    ],
)
def test_what_cannot_be_had_is_named(client, options, place):
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(client, **options)
    assert error.value.type == "invalid_request_error"
    assert error.value.api_message.startswith(place)
    assert error.value.request_id == error.value.body["request_id"]


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_know(client):
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8191 maximum"):
        ask(client, fresh("word " * 9000))


def test_a_model_that_is_not_here_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(client, model="claude")
    assert error.value.type == "not_found_error"


def test_a_stream_that_cannot_begin_is_refused(client):
    with pytest.raises(anthropic.BadRequestError):
        with client.messages.stream(**question(max_tokens=0)) as stream:
            stream.get_final_message()
