"""The real Anthropic client: messages, streams, tools, token counts, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

from tests.http.calling import ANSWER, ANTHROPIC_TOOL, ARGUMENTS, ASK, NAME
from tests.http.server_process import ServerProcess, need_native_library

pytestmark = pytest.mark.usefixtures("only_this_machine")
GREEDY = {"temperature": 0}  # the client itself has no such argument any more
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def client(server: ServerProcess) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", timeout=60, max_retries=0)


@pytest.fixture
def caller(tool_server: ServerProcess) -> Anthropic:
    """A client of a model that calls tools."""
    return Anthropic(base_url=tool_server.url, api_key="none", timeout=60, max_retries=0)


def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(
        model="any", messages=HELLO, system="Be kind.", max_tokens=4, extra_body=GREEDY
    )
    assert message.stop_reason == "max_tokens" and message.id.startswith("msg_")
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message.usage.output_tokens == 4
    again = client.messages.create(
        model="any", messages=HELLO, system="Be kind.", max_tokens=1, extra_body=GREEDY
    )
    assert again.usage.input_tokens == 1
    assert again.usage.cache_read_input_tokens
    whole = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert again.usage.cache_read_input_tokens == whole - 1


def test_a_stream_adds_up_to_its_final_message(client: Anthropic) -> None:
    asked: Any = {**GREEDY, "return_progress": True, "sse_ping_interval": 1}
    with client.messages.stream(
        model="any", messages=HELLO, max_tokens=8, extra_body=asked
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text"]
    assert text == final.content[0].text != ""  # type: ignore[union-attr]
    assert final.usage.output_tokens == 8
    assert final.usage.cache_read_input_tokens is not None


def test_stop_sequences_are_told(scripted_server: ServerProcess) -> None:
    client = Anthropic(base_url=scripted_server.url, api_key="none", max_retries=0)
    asked: Any = {"model": "any", "messages": HELLO, "max_tokens": 60, "extra_body": GREEDY}
    message = client.messages.create(stop_sequences=["here"], **asked)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "here")
    assert message.content[0].text == "Hello t"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "choice", [{"type": "tool", "name": NAME}, {"type": "any"}, {"type": "auto"}]
)
def test_a_tool_is_called_and_its_result_read(caller: Anthropic, choice: Any) -> None:
    asked: dict[str, Any] = {"model": "any", "tools": [ANTHROPIC_TOOL], "extra_body": GREEDY}
    message = caller.messages.create(messages=ASK, tool_choice=choice, max_tokens=60, **asked)
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert call.type == "tool_use" and (call.name, call.input) == (NAME, ARGUMENTS)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It says hello."}
    said = [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "text", "text": "So?"}, result]},
    ]
    answer = caller.messages.create(messages=[*ASK, *said], max_tokens=60, **asked)
    assert answer.content[0].text == ANSWER  # type: ignore[union-attr]
    assert answer.stop_reason == "end_turn"
    before = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert (answer.usage.cache_read_input_tokens or 0) >= before - 8


def test_a_streamed_call_is_put_together_by_the_caller(caller: Anthropic) -> None:
    with caller.messages.stream(
        model="any", messages=ASK, tools=[ANTHROPIC_TOOL], max_tokens=60, extra_body=GREEDY
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    call = final.content[-1]
    assert len(pieces) > 1 and final.stop_reason == "tool_use"
    assert call.type == "tool_use" and call.input == ARGUMENTS


def test_structured_output_is_parsed_with_pydantic(client: Anthropic) -> None:
    class Answer(BaseModel):
        yes: bool

    message = client.messages.parse(
        model="any", messages=HELLO, max_tokens=40, output_format=Answer
    )
    assert isinstance(message.parsed_output, Answer)


def test_tokens_are_counted_as_they_are_read(client: Anthropic) -> None:
    asked: dict[str, Any] = {"model": "any", "messages": ASK, "tools": [ANTHROPIC_TOOL]}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(max_tokens=1, **asked).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_async_client_streams_several_messages_at_once(server: ServerProcess) -> None:
    async def ask(client: AsyncAnthropic, number: int) -> str:
        question: list[Any] = [{"role": "user", "content": f"Say {number}."}]
        async with client.messages.stream(
            model="any", messages=question, max_tokens=4
        ) as stream:
            return await stream.get_final_text()

    async def body() -> None:
        async with AsyncAnthropic(base_url=server.url, api_key="none") as client:
            assert all(await asyncio.gather(*(ask(client, n) for n in range(6))))

    asyncio.run(body())


def test_errors_are_of_the_client_s_kinds(client: Anthropic) -> None:
    too_long: list[Any] = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2048"):
        client.messages.create(model="any", messages=too_long, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is 2048 tokens"):
        client.messages.create(model="any", messages=too_long, max_tokens=5, stream=True)
    with pytest.raises(anthropic.BadRequestError, match="there is no tool named 'other'"):
        client.messages.create(
            model="any",
            messages=HELLO,
            max_tokens=5,
            tools=[ANTHROPIC_TOOL],
            tool_choice={"type": "tool", "name": "other"},
        )
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerProcess]:
    need_native_library()
    with ServerProcess("-c", "512", "--api-key", "right") as server:
        yield server


def test_keys_come_in_either_header(guarded: ServerProcess) -> None:
    url = guarded.url
    for key in ({"api_key": "right"}, {"auth_token": "right", "api_key": None}):
        client = Anthropic(base_url=url, max_retries=0, **key)  # type: ignore[arg-type]
        assert client.messages.count_tokens(model="any", messages=HELLO).input_tokens > 0
    with pytest.raises(anthropic.AuthenticationError, match="Invalid API Key"):
        Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(
            model="any", messages=HELLO, max_tokens=1
        )
