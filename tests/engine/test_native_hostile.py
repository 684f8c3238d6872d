"""What a hostile client may send: it gets an error or a result, quickly, and ends no process."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.runtime.native import Kind, NativeError, Reply, Sampler
from tests.engine.smollm2 import frontend, need_native_library, new_frontend

need_native_library()

MESSAGES = [{"role": "user", "content": "x"}]
SECONDS = 20.0  # what takes half a second at most; without bounds it would take minutes or hours


def raw(text: str) -> tuple[Kind, bytes]:
    return Kind.COMPLETION, text.encode()


def completion(**body: Any) -> tuple[Kind, bytes]:
    return Kind.COMPLETION, json.dumps({"prompt": "x", **body}).encode()


def chat(**body: Any) -> tuple[Kind, bytes]:
    return Kind.OAI_CHAT, json.dumps({"messages": MESSAGES, **body}).encode()


def grammar(text: str) -> tuple[Kind, bytes]:
    return completion(grammar=text)


def schema(value: Any) -> tuple[Kind, bytes]:
    return completion(json_schema=value)


def chain(link: Callable[[str], Any], n: int) -> dict[str, Any]:
    definitions = {f"d{i}": link(f"#/definitions/d{i + 1}") for i in range(n)}
    definitions[f"d{n}"] = {"type": "string"}
    return {"$ref": "#/definitions/d0", "definitions": definitions}


def called_with(arguments: str) -> tuple[Kind, bytes]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "tool", "tool_call_id": "1", "content": "x"}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    return chat(messages=[*MESSAGES, assistant, answer, *MESSAGES])


REFUSED: dict[str, tuple[Kind, bytes]] = {
    "a deep array": raw('{"prompt":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "a deep object": raw('{"a":' * 100_000 + "1" + "}" * 100_000),
    "an endless array": raw("[" * 1_000_000),
    "many keys": completion(**{f"k{i}": i for i in range(100_000)}),
    "deep arguments in a string": called_with("[" * 50_000),
    "a deep grammar": grammar("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000),
    "a grammar with many alternatives": grammar("root ::= " + "|".join(['"a"'] * 100_000)),
    "a grammar that doubles its stacks": grammar(
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(40))
        + '\nr40 ::= "a"'
    ),
    "a grammar of optional parts": grammar("root ::= " + " ".join(['("a"?){0,1000}'] * 50)),
    "a grammar of repeated repetitions": grammar('root ::= (("a"?){0,1000} "b"?){0,1000}'),
    "a long grammar": grammar('root ::= "' + "a" * 2_000_000 + '"'),
    "many rules": grammar("\n".join(f'r{i} ::= "a"' for i in range(30_000))),
    "a left-recursive grammar": grammar('root ::= a\na ::= b | "x"\nb ::= a "y"'),
    "a schema that repeats a lot": schema({"type": "string", "minLength": 2_000_000_000}),
    "a schema with many members": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(3000)}}
    ),
    "a large enumeration": schema({"enum": list(range(50_000))}),
    "a long chain of references": schema(chain(lambda d: {"$ref": d}, 5000)),
    "a reference to itself": schema({"$ref": "#"}),
    "a circle of references": schema(
        {"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}}
    ),
    "a reference to elsewhere": schema({"$ref": "http://127.0.0.1:1/x.json"}),
    "a deep pattern": schema({"type": "string", "pattern": "^" + "(" * 4000 + "$"}),
    "a huge pattern": schema({"type": "string", "pattern": "^" + "a" * 100_000 + "$"}),
    "a deep pattern in a tool": chat(
        tool_choice="required",
        tools=[{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"x": {"type": "string", "pattern": "(" * 3000}}}}}],
    ),
    "many samplers": completion(samplers="e" * 1_000_000),
    "many sequence breakers": completion(dry_sequence_breakers=["a"] * 100_000),
    "many stop strings": completion(stop=["x"] * 100_000),
    "many response fields": completion(response_fields=["content"] * 100_000),
    "many message delimiters": completion(message_delimiters=[{"delimiter": "y"}] * 100_000),
    "an unknown trigger": completion(grammar_triggers=[{"type": 7, "value": "x"}]),
    "a regular expression": completion(grammar_triggers=[{"type": 2, "value": "(a*)*b"}]),
    "a deep regular expression": completion(grammar_triggers=[{"type": 3, "value": "(" * 50_000}]),
    "a long trigger word": completion(grammar_triggers=[{"type": 1, "value": "a" * 90_000}]),
    "a chat format out of range": completion(chat_format=99),
    "a negative chat format": completion(chat_format=-1),
    "a parser of its own": completion(chat_parser='{"parsers":[],"rules":{},"root":0}'),
    "a parser in a chat": chat(chat_parser="{}"),
    "an infinite bias": completion(logit_bias=[[5, 1e39]]),
    "an infinite temperature": completion(temperature=1e39),
    "all probabilities of a long reply": completion(n_probs=2**31 - 1),
    "a prefilled grammar that does not fit": completion(
        grammar='root ::= "a"', grammar_type="tool_calls", generation_prompt="zzz"
    ),
    "a zero byte in a grammar": grammar('root ::= "a\0"'),
}  # fmt: skip

ACCEPTED: dict[str, tuple[Kind, bytes]] = {
    "the deepest schema": schema(
        json.loads('{"type":"array","items":' * 95 + "{}" + "}" * 95)
    ),
    "the deepest arguments": called_with("[" * 100 + "]" * 100),
    "the deepest grammar": grammar("root ::= " + "(" * 100 + '"a"' + ")" * 100),
    "a long chain of rules": grammar(
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1}" for i in range(8000)) + '\nr8000 ::= "a"'
    ),
    "the longest chain of references": schema(chain(lambda d: {"$ref": d}, 490)),
    "the longest chain of objects": schema(
        chain(lambda d: {"type": "object", "properties": {"x": {"$ref": d}}}, 400)
    ),
    "the most members": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(250)}}
    ),
    "a deep pattern": schema({"type": "string", "pattern": "^" + "(a" * 90 + ")" * 90 + "$"}),
    "the whole past penalised": completion(repeat_last_n=2**31 - 1, repeat_penalty=1.5),
    "the whole past scanned": completion(dry_penalty_last_n=2**31 - 1, dry_multiplier=1.0),
    "the longest trigger word": completion(
        grammar='root ::= "a"', grammar_lazy=True,
        grammar_triggers=[{"type": 1, "value": "w" * 256}],
    ),
    "zero bytes": completion(prompt="a\0b", stop=["\0"]),
    "unknown adapters": completion(lora=[{"id": -5, "scale": 1e30}, {"id": 2**31 - 1}, 5, None]),
    "odd biases": completion(logit_bias=[[99_999_999, 1], [-1, 2], ["x", 1], [1], {}, 5]),
}  # fmt: skip


def in_small_thread(work: Callable[[], None]) -> None:
    """Runs `work` where the HTTP process would: on a thread with the usual stack of 8 MB."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failure.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str) -> None:
    kind, body = REFUSED[name]

    def work() -> None:
        begin = time.monotonic()
        with pytest.raises(NativeError) as caught:
            frontend().prepare(kind, body)
        assert time.monotonic() - begin < SECONDS
        assert caught.value.code == 400 and 0 < len(caught.value.message) < 2000

    in_small_thread(work)


@pytest.mark.parametrize("name", ACCEPTED)
def test_is_accepted_at_the_bound(name: str) -> None:
    """What is just allowed fits the stack, also when the engine builds its sampler."""
    kind, body = ACCEPTED[name]

    def work() -> None:
        begin = time.monotonic()
        prepared = frontend().prepare(kind, body)
        assert Sampler(frontend(), prepared.sampling()).save()
        assert prepared.reply(0, 0).final(sse=False)
        assert time.monotonic() - begin < SECONDS

    in_small_thread(work)


TOOL_TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{% endif -%}{%- for m in messages %}<|im_start|>"
    "{{ m.role }}\n{{ m.content }}{%- if m.tool_calls %}{%- for t in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ t.function.name }}", "arguments": {{ t.function.arguments | tojson }}}\n'
    "</tool_call>{%- endfor %}{%- endif %}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEEP = b'<tool_call>\n{"name": "f", "arguments": {"x": ' + b"[" * 100_000


def tool_reply(**body: Any) -> Reply:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    _, data = chat(tools=[tool], stream=True, **body)
    return new_frontend(chat_template=TOOL_TEMPLATE).prepare(Kind.OAI_CHAT, data).reply(0, 0)


def test_deep_output_of_a_model_is_an_error() -> None:
    """The chat parser recurses over JSON, which a client can make a model write."""

    def work() -> None:
        with pytest.raises(NativeError, match="nested too deeply"):
            tool_reply().chunk(sse=True, text=DEEP, n_decoded=1)
        with pytest.raises(NativeError, match="nested too deeply"):
            tool_reply().final(sse=True, text=DEEP, stop=1)

    in_small_thread(work)


@pytest.mark.parametrize("asked", [True, False])
def test_a_deep_message_to_be_continued_is_an_error(asked: bool) -> None:
    prefill = {"role": "assistant", "content": DEEP.decode()}
    how = {"continue_final_message": True, "add_generation_prompt": False} if asked else {}

    def work() -> None:
        with pytest.raises(NativeError, match="nested too deeply"):
            reply = tool_reply(messages=[*MESSAGES, prefill], **how)
            reply.chunk(sse=True, text=b"[", n_decoded=1)

    in_small_thread(work)


def test_refusing_leaves_no_memory_behind() -> None:
    body = completion(grammar='root ::= "a"', grammar_type="tool_calls", generation_prompt="z")[1]

    def refuse(n: int) -> int:
        for _ in range(n):
            with pytest.raises(NativeError):
                frontend().prepare(Kind.COMPLETION, body)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    before = refuse(300)
    assert refuse(3000) - before < 2048


# ---- anything at all ----------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["auto", "required", "user", "assistant", "system", "tool", "text", "function",
                     "json_object", "deepseek", "root ::= [a-z]+", "<|im_start|>", "#", ""]),
)  # fmt: skip
FIELDS = [
    "messages", "role", "content", "type", "text", "tool_calls", "function", "name", "arguments",
    "parameters", "properties", "required", "items", "enum", "$ref", "pattern", "tools", "id",
    "tool_choice", "response_format", "json_schema", "schema", "grammar", "grammar_lazy",
    "grammar_triggers", "grammar_type", "preserved_tokens", "generation_prompt", "chat_format",
    "chat_parser", "message_delimiters", "delimiter", "reasoning_format", "reasoning_effort",
    "reasoning_control", "reasoning_budget_tokens", "reasoning_budget_start_tag",
    "reasoning_budget_end_tag", "reasoning_budget_end_tags", "reasoning_budget_message",
    "continue_final_message", "add_generation_prompt", "chat_template_kwargs", "enable_thinking",
    "parse_tool_calls", "parallel_tool_calls", "echo", "prompt", "prompt_string", "input", "system",
    "instructions", "multimodal_data", "input_prefix", "input_suffix", "input_extra", "stop",
    "stop_sequences", "thinking", "stream", "stream_options", "include_usage", "n_predict",
    "max_tokens", "n", "n_probs", "logprobs", "top_logprobs", "logit_bias", "ignore_eos",
    "samplers", "dry_sequence_breakers", "lora", "scale", "seed", "temperature", "verbose",
    "response_fields",
    "id_slot", "value", "token", "add_special", "with_pieces", "tokens", "lookup", "input_schema",
]  # fmt: skip
keys = st.sampled_from(FIELDS) | st.text(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)
chat_messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "name", "tool_call_id", "type"]),
        values | st.sampled_from(["user", "assistant", "x"]),
        max_size=4,
    ),
    max_size=4,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FIELDS, values),
        "messages": chat_messages | values,
        "prompt": st.sampled_from(["x", [5], ["a", "b"]]) | values,
    },
)


def survives(call: Callable[[], object]) -> object:
    """The call's result; None after an error in llama-server's form."""
    try:
        return call()
    except NativeError as e:
        assert e.code in (400, 500, 501)
        assert e.type in ("invalid_request_error", "server_error", "not_supported_error")
        assert isinstance(e.message, str)
        return None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(list(Kind)), bodies)
def test_any_fields_give_a_request_or_an_error(kind: Kind, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    prepared: Any = survives(lambda: frontend().prepare(kind, data))
    if prepared is None:
        return
    assert prepared.info["n_prompts"] >= 1
    survives(lambda: Sampler(frontend(), prepared.sampling()).save())
    reply: Any = survives(lambda: prepared.reply(0, 0))
    if reply is not None:
        survives(lambda: reply.chunk(sse=True, text=b'{"a', n_decoded=1))
        survives(lambda: reply.final(sse=prepared.info["stream"], text=b'": [1]}', stop=1))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(Kind)),
    st.binary(max_size=200) | values.map(lambda v: json.dumps(v).encode()),
)
def test_any_bytes_give_a_request_or_an_error(kind: Kind, body: bytes) -> None:
    survives(lambda: frontend().prepare(kind, body))
    for route in (frontend().tokenize, frontend().detokenize, frontend().apply_template):
        survives(lambda route=route: json.loads(route(body)))  # type: ignore[misc]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text('abr01:=|()[]{}"\\*+?,<>!-^.# \n', max_size=60))
def test_any_grammar_gives_a_request_or_an_error(text: str) -> None:
    data = json.dumps({"prompt": "x", "grammar": "root ::= " + text}).encode()
    survives(lambda: frontend().prepare(Kind.COMPLETION, data))
