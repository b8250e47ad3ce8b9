"""The `openai` SDK against the real binary and the real model: what its users rely on."""

import openai
import pytest

BASE = "smollm2-135m"
ADAPTERS = {"caps", "json", "pirate", "robot", "sentiment"}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_models_lists_base_and_adapters(client):
    models = {model.id: model for model in client.models.list()}
    assert {BASE} | ADAPTERS <= set(models)
    assert models[BASE].object == "model"
    assert models[BASE].created > 1_700_000_000
    assert client.models.retrieve("caps").id == "caps"


def test_chat(client):
    answer = client.chat.completions.create(model=BASE, messages=QUESTION, temperature=0, max_tokens=24)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == BASE
    assert len(answer.choices) == 1
    assert answer.choices[0].message.role == "assistant"
    # transformers gives the same sentence: tests/fixtures of the engine.
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens == 37
    # "The capital of France is Paris." and the end-of-sequence token.
    assert answer.usage.completion_tokens == 8


def test_chat_stream_equals_document(client):
    request = dict(model=BASE, messages=QUESTION, temperature=0, max_tokens=24)
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_completions_stream_equals_document(client):
    request = dict(model=BASE, prompt="Once upon a time, in a small village by the sea,", temperature=0, max_tokens=20)
    whole = client.completions.create(**request)
    assert whole.object == "text_completion"
    assert whole.id.startswith("cmpl-")
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 20
    chunks = list(client.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text


def test_n_gives_distinct_choices(client):
    answer = client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "Tell me a story."}], n=3, seed=7, max_tokens=12
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    again = client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "Tell me a story."}], n=3, seed=7, max_tokens=12
    )
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "Tell me a story."}], n=3, seed=7, max_tokens=12, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


@pytest.mark.parametrize("stop", [" is", [" is", "never"], ["pital of F", " is"]])
def test_stop_as_string_and_list(client, stop):
    answer = client.chat.completions.create(model=BASE, messages=QUESTION, temperature=0, max_tokens=24, stop=stop)
    expected = "The ca" if stop[0].startswith("pital") else "The capital of France"
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    streamed = client.chat.completions.create(
        model=BASE, messages=QUESTION, temperature=0, max_tokens=24, stop=stop, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == expected


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model=BASE, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    assert len(content) == 4
    for token in content:
        assert bytes(token.bytes).decode() == token.token
        assert -20 < token.logprob <= 0
        assert len(token.top_logprobs) == 3
        # Greedy: the token is the likeliest one.
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
        assert sorted((t.logprob for t in token.top_logprobs), reverse=True) == [t.logprob for t in token.top_logprobs]


def test_completions_logprobs_and_echo(client):
    prompt = "The capital of France is"
    answer = client.completions.create(model=BASE, prompt=prompt, temperature=0, max_tokens=3, logprobs=2, echo=True)
    choice = answer.choices[0]
    assert choice.text.startswith(prompt)
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.tokens) == answer.usage.prompt_tokens + 3
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset[0] == 0
    for offset, token in zip(logprobs.text_offset, logprobs.tokens):
        assert choice.text[offset:].startswith(token)


def test_prompt_arrays_and_tokens(client):
    answer = client.completions.create(
        model=BASE, prompt=["One, two,", "Red, green,"], n=2, temperature=0.9, seed=1, max_tokens=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    text = client.completions.create(model=BASE, prompt="def fibonacci(n):\n", temperature=0, max_tokens=8)
    # The ids of that prompt, from the goldens.
    tokens = client.completions.create(model=BASE, prompt=[1604, 3987, 46477, 24, 94, 727, 198], temperature=0, max_tokens=8)
    assert tokens.usage.prompt_tokens == 7
    assert text.choices[0].text == tokens.choices[0].text


def test_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert "gpt-4o" in caught.value.message


def test_bad_values_are_named(client):
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(model=BASE, messages=QUESTION, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(model=BASE, messages=QUESTION, n=0)
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(model=BASE, messages=[{"role": "user", "content": "word " * 9000}])


def test_unauthenticated_and_forbidden(secured):
    with pytest.raises(openai.AuthenticationError) as caught:
        secured.client("wrong").chat.completions.create(model="pocket", messages=QUESTION)
    assert caught.value.code == "invalid_api_key"
    assert "wrong" not in caught.value.message
    with pytest.raises(openai.AuthenticationError):
        list(secured.client("wrong").models.list())
    known = secured.client("sesame")
    assert known.chat.completions.create(model="pocket", messages=QUESTION, max_tokens=4).choices
    assert known.chat.completions.create(model="caps", messages=QUESTION, max_tokens=4).choices
    with pytest.raises(openai.PermissionDeniedError):
        known.chat.completions.create(model="pirate", messages=QUESTION, max_tokens=4)
