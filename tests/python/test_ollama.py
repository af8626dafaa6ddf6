"""Ollama's official client against the daemon at HOB_URL (see run.sh): models, chats, streams, calls and forms.

The model is tiny: what it says is worth nothing, but every call and every form must be valid.
"""

import os
import uuid
from typing import Literal

import ollama
import pydantic
import pytest

ROOMS = ("kitchen", "hall")


@pytest.fixture(scope="module")
def client():
    return ollama.Client(host=os.environ["HOB_URL"], timeout=300)


def ask(client, text="Count from one to ten in words.", **options):
    options = {"model": "tiny", "options": {"temperature": 0, "num_predict": 12, "num_ctx": 8192.0}, **options}
    return client.chat(**{"messages": [{"role": "user", "content": f"{uuid.uuid4()} {text}"}], **options})


def test_models_are_listed_and_shown(client):
    assert {model.model for model in client.list().models} == {"house", "tiny"}
    assert {model.model for model in client.ps().models} == {"house", "tiny"}
    shown = client.show("tiny")
    assert shown.modelinfo["general.architecture"] == "llama"
    assert {"completion", "tools"} <= set(shown.capabilities)


def test_a_chat_is_answered_whole(client):
    answer = ask(client, keep_alive=-1.0)
    assert answer.done and answer.done_reason in ("stop", "length")
    assert answer.message.role == "assistant" and answer.message.content
    assert 1 <= answer.eval_count <= 12 and answer.prompt_eval_count > 0


def test_a_stream_adds_up(client):
    messages = [{"role": "user", "content": "Count from one to ten in words."}]
    whole = ask(client, messages=messages)
    *pieces, last = ask(client, messages=messages, stream=True)
    assert not any(piece.done for piece in pieces) and last.done
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert last.eval_count == whole.eval_count


def test_generate_answers_a_prompt(client):
    options = {"temperature": 0, "num_predict": 8}
    assert client.generate(model="tiny", prompt="Say hello.", system="Be brief.", options=options).response


def test_a_tools_result_goes_back_in(client):
    def light(room: str, on: bool) -> str:
        """Switches a light.

        Args:
            room: kitchen or hall
            on: whether it is to be on
        """
        return f"{room}: {on}"

    question = {"role": "user", "content": f"{uuid.uuid4()} Switch the kitchen light on."}
    call = {"function": {"name": "light", "arguments": {"room": "kitchen", "on": True}}}
    messages = [
        question,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_name": "light"},
    ]
    answer = ask(client, messages=messages, tools=[light])
    assert answer.message.content or answer.message.tool_calls
    for call in answer.message.tool_calls or []:
        assert call.function.name == "light" and set(call.function.arguments) == {"room", "on"}


class Light(pydantic.BaseModel):
    room: Literal["kitchen", "hall"]
    is_on: bool


def test_a_form_is_obeyed(client):
    options = {"temperature": 0, "num_predict": 60}
    answer = ask(client, "The kitchen light is on.", format=Light.model_json_schema(), options=options)
    assert Light.model_validate_json(answer.message.content).room in ROOMS


def test_a_form_that_cannot_be_obeyed_is_refused_by_the_clients_name_for_it(client):
    with pytest.raises(ollama.ResponseError, match="format") as refused:
        ask(client, format={"type": "string", "pattern": "(?=a)b"})
    assert refused.value.status_code == 400


def test_a_model_that_is_not_here_is_refused_at_once(client):
    for call in (lambda: client.pull("nowhere"), lambda: ask(client, model="nowhere"), lambda: client.show("nowhere")):
        with pytest.raises(ollama.ResponseError, match="not found") as refused:
            call()
        assert refused.value.status_code == 404


def test_embeddings_are_refused_in_plain_words(client):
    with pytest.raises(ollama.ResponseError, match="no embeddings"):
        client.embed(model="tiny", input="hi")
