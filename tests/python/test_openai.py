"""The official OpenAI client against a running daemon at HOB_URL, which serves the demo household.

`house` is the pinned profile, `tiny` the bare model with a context of 8,192 tokens (see run.sh). Nothing here judges what
the tiny model says; answers are compared only with other answers to the same, equally warm, request.
"""

import asyncio
import os
import re
import uuid

import openai
import pytest

OPTIONS = {"base_url": os.environ["HOB_URL"] + "/v1", "api_key": "unused", "max_retries": 0, "timeout": 300}
COUNT = "Count from one to one hundred in words: one, two, three,"


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(**OPTIONS)


def ask(client, text=COUNT, model="tiny", messages=None, **options):
    options = {"temperature": 0, "max_tokens": 12, **options}
    return client.chat.completions.create(model=model, messages=messages or [user(text)], **options)


def user(text):
    return {"role": "user", "content": text}


def fresh(text=COUNT):
    """`text` with a beginning that no request before had."""
    return f"{uuid.uuid4()} {text}"


def cached(usage):
    return usage.prompt_tokens_details.cached_tokens


def test_models_lists_the_model_and_the_profile(client):
    names = {model.id for model in client.models.list()}
    assert names == {"house", "tiny"}


def test_an_answer_has_the_shape_the_client_expects(client):
    answer = ask(client, model="house", text="When is the grey bin collected?")
    assert answer.object == "chat.completion"
    assert answer.model == "house"
    assert answer.id and answer.created > 0
    [choice] = answer.choices
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert 1 <= usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_the_household_is_warm_before_the_first_question(client):
    usage = ask(client, model="house", text=fresh()).usage
    assert cached(usage) > 2500
    assert usage.prompt_tokens - cached(usage) < 150


def test_an_identical_request_computes_one_token(client):
    text = fresh()
    first, second = ask(client, text).usage, ask(client, text).usage
    assert second.prompt_tokens == first.prompt_tokens
    assert cached(second) == second.prompt_tokens - 1


def test_a_cold_prompt_reports_what_little_was_cached(client):
    usage = ask(client, messages=[{"role": "system", "content": fresh("Be brief.")}, user("Hello")]).usage
    # At most the template's opening of the first message is shared.
    assert 0 <= cached(usage) <= 4


def test_headers_tell_the_same_as_usage(client):
    raw = client.chat.completions.with_raw_response.create(
        model="house", messages=[user(fresh())], max_tokens=4, temperature=0
    )
    usage = raw.parse().usage
    assert raw.headers["x-request-id"]
    fields = dict(re.findall(r"(\w+)=(\w+)", raw.headers["x-hob-cache"]))
    assert int(fields["reused"]) == cached(usage)
    assert int(fields["of"]) == usage.prompt_tokens
    assert fields["cause"]


def test_a_stream_says_what_the_whole_answer_says(client):
    text = fresh()
    ask(client, text)
    whole = ask(client, text)
    chunks = list(ask(client, text, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(1 for piece in pieces if piece) > 1, "the answer came in one piece"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}


def test_a_stream_ends_with_usage_when_asked(client):
    text = fresh()
    whole = ask(client, text)
    *chunks, last = ask(client, text, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert cached(last.usage) == last.usage.prompt_tokens - 1


def test_a_closed_stream_leaves_the_daemon_answering(client):
    stream = ask(client, fresh(), stream=True, max_tokens=400)
    next(iter(stream))
    stream.close()
    assert ask(client, fresh()).choices[0].message.content


def test_a_system_text_stands_behind_the_pinned_household(client):
    question = user(fresh())
    bare = ask(client, model="house", messages=[question]).usage
    system = {"role": "system", "content": "You speak to Wren, who is in the map room."}
    longer = ask(client, model="house", messages=[system, question]).usage
    assert longer.prompt_tokens > bare.prompt_tokens
    assert cached(longer) > 2500


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_and_developer_texts_reach_the_prompt(client, role):
    bare = ask(client, messages=[{"role": role, "content": "Be brief."}, user("Hello")]).usage
    longer = ask(client, messages=[{"role": role, "content": "Be brief. " * 20}, user("Hello")]).usage
    assert longer.prompt_tokens > bare.prompt_tokens + 20


def test_a_second_turn_stands_on_the_first(client):
    first_turn = [user(fresh())]
    first = ask(client, messages=first_turn)
    reply = {"role": "assistant", "content": first.choices[0].message.content}
    second = ask(client, messages=[*first_turn, reply, user("And backwards?")])
    # The opening of the answer may be cut differently when the answer follows it as text.
    assert cached(second.usage) >= first.usage.prompt_tokens - 4


def test_text_parts_are_read_as_text(client):
    text = fresh()
    ask(client, text)
    usage = ask(client, messages=[{"role": "user", "content": [{"type": "text", "text": text}]}]).usage
    assert cached(usage) == usage.prompt_tokens - 1


def test_tools_of_the_client_reach_the_prompt(client):
    tool = {
        "type": "function",
        "function": {
            "name": "feed_dog",
            "description": "Open the food bin of the dog.",
            "parameters": {"type": "object", "properties": {"scoops": {"type": "number"}}},
        },
    }
    text = fresh()
    bare = ask(client, text).usage
    assert ask(client, text, tools=[tool]).usage.prompt_tokens > bare.prompt_tokens + 20


def test_max_tokens_ends_with_length(client):
    for name in ("max_tokens", "max_completion_tokens"):
        options = {"max_tokens": openai.omit, name: 3}
        answer = ask(client, **options)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


def test_stop_ends_the_answer_and_is_not_part_of_it(client):
    text = fresh()
    ask(client, text)
    whole = ask(client, text, max_tokens=24).choices[0].message.content
    words = whole.split()
    assert len(words) >= 3, f"the model said too little to cut: {whole!r}"
    stop = words[2]
    choice = ask(client, text, max_tokens=24, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == whole[: whole.index(stop)]


def test_a_seed_repeats_an_answer(client):
    text = fresh("Tell a story.")
    options = {"temperature": 1, "max_tokens": 24}
    ask(client, text)
    first, second, other = (
        ask(client, text, seed=seed, **options).choices[0].message.content for seed in (7, 7, 8)
    )
    assert first == second
    assert first != other


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        ask(client, model="kitchen-9000")
    assert "kitchen-9000" in str(error.value)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "one two three four five six seven eight nine ten " * 1000)
    assert error.value.code == "context_length_exceeded"
    numbers = [int(number) for number in re.findall(r"\d+", error.value.message.replace(",", ""))]
    assert 8192 in numbers
    assert any(number >= 10000 for number in numbers)


@pytest.mark.parametrize("field, value", [("temperature", "hot"), ("n", 9), ("messages", []), ("stop", [1])])
def test_a_bad_field_is_named(client, field, value):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, extra_body={field: value})
    assert error.value.body["type"] == "invalid_request_error"
    assert field in error.value.message
    assert ask(client).choices[0].message.content, "the daemon answers afterwards"


def test_the_async_client_gets_answers_side_by_side():
    async def side_by_side():
        async with openai.AsyncOpenAI(**OPTIONS) as client:

            async def whole(n):
                return await ask(client, model="house", text=fresh(f"Question {n}: which day is it?"))

            async def streamed():
                stream = await ask(client, model="house", text=fresh(), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(whole(1), whole(2), whole(3), streamed())

    *answers, text = asyncio.run(side_by_side())
    assert all(cached(answer.usage) > 2500 for answer in answers)
    assert all(answer.choices[0].message.content for answer in answers)
    assert text
