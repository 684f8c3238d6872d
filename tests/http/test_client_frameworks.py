"""Libraries that put their own layer over the clients: LiteLLM, LangChain, LlamaIndex."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.http.calling import ARGUMENTS, ASK, CHAT_TOOL, NAME, QUESTION
from tests.http.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("only_this_machine")
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


class Colour(BaseModel):
    """A colour."""

    name: Literal["red", "green"] = Field(description="its name")
    warm: bool


# ---- LiteLLM -------------------------------------------------------------------------------------


@pytest.fixture(params=["openai", "anthropic"])
def litellm_args(request: Any, tool_server: ServerProcess) -> dict[str, Any]:
    provider = request.param
    base = tool_server.url + ("/v1" if provider == "openai" else "")
    return {
        "model": f"{provider}/any",
        "api_base": base,
        "api_key": "none",
        "timeout": 60,
        "num_retries": 0,
    }


def test_litellm_completes(litellm_args: dict[str, Any]) -> None:
    import litellm

    reply = litellm.completion(messages=HELLO, max_tokens=4, **litellm_args)
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 4


def test_litellm_streams(litellm_args: dict[str, Any]) -> None:
    import litellm

    chunks = list(litellm.completion(messages=HELLO, max_tokens=4, stream=True, **litellm_args))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_litellm_calls_a_tool(litellm_args: dict[str, Any]) -> None:
    import litellm

    reply = litellm.completion(
        messages=ASK, tools=[CHAT_TOOL], temperature=0, **litellm_args
    )
    (call,) = reply.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (NAME, ARGUMENTS)
    assert reply.choices[0].finish_reason == "tool_calls"


def test_litellm_knows_a_prompt_that_is_too_long(litellm_args: dict[str, Any]) -> None:
    import litellm

    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 5000}], **litellm_args)


# ---- LangChain -----------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def langchain(request: Any, tool_server: ServerProcess) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="any",
        base_url=tool_server.url + "/v1",
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        temperature=0,
        max_tokens=60,  # type: ignore[call-arg]
        use_responses_api=request.param,
        stream_usage=True,
    )


def test_langchain_streams(langchain: Any) -> None:
    whole = None
    for chunk in langchain.stream("Hello!"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and whole.text
    assert whole.usage_metadata["output_tokens"] > 0


def test_langchain_binds_tools_and_sends_results_back(langchain: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = langchain.bind_tools([CHAT_TOOL])
    question = HumanMessage(QUESTION)
    message = bound.invoke([question])
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == (NAME, ARGUMENTS)
    result = ToolMessage("It says hello.", tool_call_id=call["id"])
    assert bound.invoke([question, message, result], max_tokens=4).usage_metadata[
        "input_token_details"
    ]["cache_read"]


def test_langchain_reads_structured_output(langchain: Any) -> None:
    found = langchain.with_structured_output(Colour, method="json_schema").invoke("Hello!")
    assert isinstance(found, Colour)


# ---- LlamaIndex ----------------------------------------------------------------------------------


@pytest.fixture
def llama_index(tool_server: ServerProcess) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model="any",
        api_base=tool_server.url + "/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        temperature=0,
        max_tokens=60,
    )


def test_llama_index_chats_and_streams(llama_index: Any) -> None:
    from llama_index.core.llms import ChatMessage

    question = [ChatMessage(role="user", content="Hello!")]
    answer = llama_index.chat(question).message.content
    pieces = [piece.delta for piece in llama_index.stream_chat(question)]
    assert answer and "".join(piece or "" for piece in pieces) == answer


def test_llama_index_calls_a_tool(llama_index: Any) -> None:
    from llama_index.core.tools import FunctionTool

    def get_weather(city: str, days: int) -> str:
        """Tells the weather."""
        return f"sunny in {city} for {days} days"

    tool = FunctionTool.from_defaults(get_weather)
    reply = llama_index.chat_with_tools([tool], user_msg=QUESTION)
    (call,) = llama_index.get_tool_calls_from_response(reply)
    assert (call.tool_name, call.tool_kwargs) == (NAME, ARGUMENTS)
