"""Responses, whole and streamed, by the official OpenAI client against the daemon at HOB_URL (see run.sh).

The model is tiny: what it says is worth nothing. What is checked is that the client understands every event, and that streamed
events add up to the response that ends them.
"""

import json
import os
import uuid
from typing import Literal

import openai
import pydantic
import pytest

OPTIONS = {"base_url": os.environ["HOB_URL"] + "/v1", "api_key": "unused", "max_retries": 0, "timeout": 300}
LIGHT = {
    "type": "function",
    "name": "light",
    "description": "Switches a light.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Light(pydantic.BaseModel):
    room: Literal["kitchen", "hall"]
    is_on: bool


@pytest.fixture(scope="module")
def client():
    # What does not have the documented form is an error, not a warning.
    return openai.OpenAI(**OPTIONS, _strict_response_validation=True)


def ask(client, text="Count from one to ten in words.", **options):
    options = {"model": "tiny", "temperature": 0, "max_output_tokens": 12, "store": False, **options}
    return client.responses.create(**{"input": f"{uuid.uuid4()} {text}", **options})


def check_call(item):
    assert item.type == "function_call" and item.name == "light" and item.call_id
    arguments = json.loads(item.arguments)
    assert arguments["room"] in ("kitchen", "hall") and isinstance(arguments["on"], bool)


def test_a_response_has_the_documented_form(client):
    response = ask(client)
    assert response.object == "response" and response.status in ("completed", "incomplete")
    assert response.output_text
    usage = response.usage
    assert 1 <= usage.output_tokens <= 12
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens + usage.input_tokens_details.cache_write_tokens == usage.input_tokens


def test_events_add_up_to_the_response_that_ends_them(client):
    text, last = "", None
    for number, event in enumerate(ask(client, stream=True)):
        assert event.sequence_number == number
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == text != ""


def test_the_clients_own_accumulator_reads_the_stream(client):
    question = {"model": "tiny", "input": "The kitchen light is on.", "max_output_tokens": 60, "temperature": 0}
    with client.responses.stream(**question, text_format=Light) as stream:
        kinds = {event.type for event in stream}
        response = stream.get_final_response()
    assert {"response.created", "response.output_text.delta", "response.output_text.done"} <= kinds
    assert isinstance(response.output_parsed, Light)


def test_a_conversation_goes_on_from_what_the_client_sends_back(client):
    history = [{"role": "user", "content": f"{uuid.uuid4()} Name three colours."}]
    first = ask(client, input=history)
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history += [{"role": "user", "content": "And three animals."}]
    second = ask(client, input=history)
    # All but the last token of the first prompt is reused, and the answer's own tokens, too.
    held = first.usage.input_tokens + first.usage.output_tokens - 2
    assert second.usage.input_tokens_details.cached_tokens >= held


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_required_call_is_valid_and_its_result_is_taken(client, is_streamed):
    question = [{"role": "user", "content": f"{uuid.uuid4()} Switch the light in the kitchen on."}]
    options = {"input": question, "tools": [LIGHT], "tool_choice": "required", "max_output_tokens": 200}
    if is_streamed:
        arguments, response = "", None
        for event in ask(client, stream=True, **options):
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
            if event.type == "response.completed":
                response = event.response
        assert json.loads(arguments)
    else:
        response = ask(client, **options)
    [call] = [item for item in response.output if item.type == "function_call"]
    check_call(call)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "The light is on."}
    history = question + [item.model_dump(exclude_none=True) for item in response.output] + [result]
    answer = ask(client, input=history, tools=[LIGHT], tool_choice="none")
    assert answer.output_text
    assert answer.usage.input_tokens_details.cached_tokens >= response.usage.input_tokens - 1


def test_a_form_is_parsed(client):
    response = client.responses.parse(
        model="tiny", input="The kitchen light is on.", text_format=Light, max_output_tokens=60, temperature=0
    )
    assert isinstance(response.output_parsed, Light)


def test_probabilities_are_told_where_they_are_asked_for(client):
    response = ask(client, include=["message.output_text.logprobs"], top_logprobs=2)
    [part] = response.output[0].content
    assert part.logprobs and all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


def test_what_needs_a_store_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="not kept"):
        ask(client, previous_response_id="resp_1")


def test_embeddings_are_refused_in_plain_words(client):
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="tiny", input="hi")
