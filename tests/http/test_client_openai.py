"""The real OpenAI client: chat, tools, structured output, responses, embeddings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import (
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
)
from pydantic import BaseModel

from tests.chat.scripted import SCRIPTS
from tests.http.calling import ANSWER, ARGUMENTS, ASK, CHAT_TOOL, NAME, RESPONSES_TOOL
from tests.http.server_process import ServerProcess, need_native_library

pytestmark = pytest.mark.usefixtures("only_this_machine")
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
TOO_LONG = "word " * 5000


class Colour(BaseModel):
    name: Literal["red", "green"]
    warm: bool


def client_of(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key="none", timeout=60, max_retries=0)


@pytest.fixture
def client(server: ServerProcess) -> OpenAI:
    return client_of(server)


@pytest.fixture
def caller(tool_server: ServerProcess) -> OpenAI:
    """A client of a model that calls tools."""
    return client_of(tool_server)


# ---- chat ----------------------------------------------------------------------------------------


def test_the_model_is_found_by_its_name(client: OpenAI) -> None:
    (model,) = client.models.list().data
    reply = client.chat.completions.create(model=model.id, messages=HELLO, max_tokens=2)
    assert reply.model == model.id


def test_a_tool_is_called_and_its_result_read(caller: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "tools": [CHAT_TOOL], "temperature": 0}
    reply = caller.chat.completions.create(messages=ASK, **asked)
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == NAME
    assert json.loads(call.function.arguments) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call.id, "content": "It says hello."}
    answer = caller.chat.completions.create(messages=[*ASK, choice.message, result], **asked)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage and answer.usage.prompt_tokens_details and reply.usage
    assert answer.usage.prompt_tokens_details.cached_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= reply.usage.prompt_tokens - 8


def test_a_streamed_tool_call_comes_in_pieces(caller: OpenAI) -> None:
    with caller.chat.completions.stream(
        model="any", messages=ASK, tools=[CHAT_TOOL], temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert final.choices[0].message.tool_calls
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS


def test_answers_are_parsed_with_pydantic(client: OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="any", messages=HELLO, response_format=Colour, max_tokens=60, temperature=0
    )
    assert isinstance(reply.choices[0].message.parsed, Colour)


def test_the_async_client_streams_several_chats_at_once(server: ServerProcess) -> None:
    async def ask(client: AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": f"Say {number}."}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert usage is not None and usage.completion_tokens <= 4
        return text

    async def body() -> None:
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
            assert all(await asyncio.gather(*(ask(client, n) for n in range(6))))

    asyncio.run(body())


def test_errors_are_of_the_client_s_kinds(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="maximum context length is 2048 tokens") as caught:
        client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": TOO_LONG}], stream=True
        )
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", None)
    assert caught.value.type == "exceed_context_size_error"
    with pytest.raises(NotFoundError):
        client.files.list()


def test_a_wrong_key_is_told_so() -> None:
    need_native_library()
    with ServerProcess("-c", "512", "--api-key", "right") as guarded:
        url = guarded.url + "/v1"
        good = OpenAI(base_url=url, api_key="right", max_retries=0)
        assert len(good.models.list().data) == 1
        for ask in (
            lambda client: client.models.list(),
            lambda client: client.responses.create(model="any", input="a"),
        ):
            with pytest.raises(AuthenticationError, match="Invalid API Key"):
                ask(OpenAI(base_url=url, api_key="wrong", max_retries=0))


# ---- responses -----------------------------------------------------------------------------------


def test_a_response(client: OpenAI) -> None:
    response = client.responses.create(
        model="any", input="Hello!", instructions="Be kind.", max_output_tokens=4, temperature=0
    )
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None and response.usage.output_tokens == 4
    assert (response.instructions, response.temperature) == ("Be kind.", 0)


def test_a_streamed_response_is_the_one_that_is_told_in_the_end(client: OpenAI) -> None:
    with client.responses.stream(
        model="any", input="Hello!", max_output_tokens=60, temperature=0, text_format=Colour
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == final.output_text
    assert isinstance(final.output_parsed, Colour)


def test_responses_are_parsed_with_pydantic(client: OpenAI) -> None:
    response = client.responses.parse(
        model="any", input="Hello!", text_format=Colour, max_output_tokens=60, temperature=0
    )
    assert isinstance(response.output_parsed, Colour)


def test_a_response_calls_a_tool_and_its_items_go_back_as_they_came(caller: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "tools": [RESPONSES_TOOL], "temperature": 0}
    given: list[Any] = [*ASK]
    with caller.responses.stream(input=given, **asked) as stream:
        deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        response = stream.get_final_response()
    (call,) = response.output
    assert call.type == "function_call" and call.name == NAME
    assert json.loads(call.arguments) == json.loads("".join(deltas)) == ARGUMENTS
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It says hello."}
    given += [*response.output, result]
    answer = caller.responses.create(input=given, **asked)
    assert answer.output_text == ANSWER and answer.usage and response.usage
    cached = answer.usage.input_tokens_details.cached_tokens
    assert cached >= response.usage.input_tokens - 8


def test_reasoning_is_an_item_of_its_own(scripted_server: ServerProcess) -> None:
    client = client_of(scripted_server)
    script: Any = {"logit_bias": SCRIPTS["reasoning-call"]}
    asked: dict[str, Any] = {"model": "any", "tools": [RESPONSES_TOOL], "temperature": 0}
    given: list[Any] = ASK
    with client.responses.stream(input=given, extra_body=script, **asked) as stream:
        thought = "".join(e.delta for e in stream if e.type == "response.reasoning_text.delta")
        response = stream.get_final_response()
    reasoning, call = response.output
    assert reasoning.type == "reasoning" and reasoning.content
    assert reasoning.content[0].text == thought == "A greeting"
    assert call.type == "function_call" and call.name == NAME
    assert response.usage and response.usage.output_tokens_details.reasoning_tokens > 0
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer = client.responses.create(input=[*given, *response.output, result], **asked)
    assert answer.output_text == ANSWER


def test_tokens_of_a_response_are_counted(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="any", input="Hello!")
    response = client.responses.create(model="any", input="Hello!", max_output_tokens=1)
    assert response.usage is not None and counted.input_tokens == response.usage.input_tokens


def test_what_needs_a_memory_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="previous_response_id"):
        client.responses.create(model="any", input="a", previous_response_id="resp_1")
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model="any", input=TOO_LONG, stream=True)
    assert caught.value.code == "context_length_exceeded"


# ---- embeddings ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder() -> Iterator[OpenAI]:
    need_native_library()
    with ServerProcess("-c", "512", "--embeddings", "--pooling", "mean") as server:
        yield client_of(server)


def test_embeddings_are_the_same_numbers_in_both_formats(embedder: OpenAI) -> None:
    texts = ["a cat", "a small cat", "the price of steel"]
    by_default = embedder.embeddings.create(model="any", input=texts)  # asks for base64
    plain = embedder.embeddings.create(model="any", input=texts, encoding_format="float")
    for one, other in zip(by_default.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(x * x for x in one.embedding) == pytest.approx(1, abs=1e-3)
    assert by_default.usage.prompt_tokens == plain.usage.prompt_tokens > 0
    cat, small_cat, steel = (
        sum(a * b for a, b in zip(plain.data[0].embedding, item.embedding, strict=True))
        for item in plain.data
    )
    assert cat > small_cat > steel


def test_a_server_of_embeddings_refuses_chats(embedder: OpenAI) -> None:
    with pytest.raises(Exception, match="does not support completions"):
        embedder.chat.completions.create(model="any", messages=HELLO)
