"""Replies through libstrata, in the forms that llama-server writes.

The expected texts were taken from llama-server (times, ids and the build's name are blanked), with
the same tokens fed in.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from strata_plugin.runtime.native import Kind, NativeError, Reply
from strata_server.choice import probs_as_sent
from tests.engine.smollm2 import frontend, need_native_library, new_frontend

need_native_library()

MESSAGES = [{"role": "user", "content": "Say hi."}]


@dataclass
class Times:
    prompt_n: int = 4
    cache_n: int = 0
    prompt_ms: float = 8.0
    predicted_n: int = 3
    predicted_ms: float = 6.0


TIMINGS = {
    "cache_n": 0, "prompt_n": 4, "prompt_ms": 8.0, "prompt_per_token_ms": 2.0,
    "prompt_per_second": 500.0, "predicted_n": 3, "predicted_ms": 6.0,
    "predicted_per_token_ms": 3.0, "predicted_per_second": 333.3333333333333,
}  # fmt: skip


def new_reply(kind: Kind, body: dict[str, Any], index: int = 0, **config: Any) -> Reply:
    f = new_frontend(**config) if config else frontend()
    return f.prepare(kind, json.dumps(body).encode()).reply(0, index)


def completion(**body: Any) -> Reply:
    return new_reply(Kind.COMPLETION, {"prompt": "Once", **body})


def chat(**body: Any) -> Reply:
    return new_reply(Kind.OAI_CHAT, {"messages": MESSAGES, **body})


def blank(text: bytes) -> str:
    """Without what differs from run to run."""
    s = re.sub(r"(chatcmpl-|resp_|msg_|rs_|fc_|call_)\w{32}", r"\1ID", text.decode())
    s = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', s)
    return re.sub(r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"X"', s)


def token(reply: Reply, text: str, n: int, **more: Any) -> str:
    return blank(
        reply.chunk(
            sse=True, text=text.encode(), tokens=[n], n_decoded=n, n_prompt=4, n_cached=0, **more
        )
    )


def end(reply: Reply, sse: bool = True, **more: Any) -> str:
    fields = {"stop": 3, "n_decoded": 3, "n_prompt": 4, "id_slot": 0, "n_tokens_cached": 6}
    return blank(reply.final(sse=sse, stats=Times(), **{**fields, **more}))


def chat_event(delta: str, finish: str = "null", more: str = "") -> str:
    return (
        f'data: {{"choices":[{{"finish_reason":{finish},"index":0,"delta":{delta}}}],"created":0,'
        '"id":"chatcmpl-ID","model":"smollm2","system_fingerprint":"X",'
        f'"object":"chat.completion.chunk"{more}}}\n\n'
    )


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# ---- event streams ------------------------------------------------------------------------------


def test_a_completion_stream() -> None:
    reply = completion(stream=True)
    assert reply.chunk(sse=True, kind=2) == b""
    assert token(reply, " upon", 1) == (
        'data: {"index":0,"content":" upon","tokens":[1],"stop":false,"id_slot":-1,'
        '"tokens_predicted":1,"tokens_evaluated":4}\n\n'
    )
    last = json.loads(end(reply).removeprefix("data: "))
    assert last.pop("generation_settings")["stream"] is True
    assert last == {
        "index": 0, "content": "", "tokens": [], "id_slot": 0, "stop": True, "model": "smollm2",
        "tokens_predicted": 3, "tokens_evaluated": 4, "prompt": "Once", "has_new_line": False,
        "truncated": False, "stop_type": "limit", "stopping_word": "", "tokens_cached": 6,
        "timings": TIMINGS,
    }  # fmt: skip


def test_progress_of_the_prompt_is_shown_where_it_was_asked_for() -> None:
    fields: dict[str, Any] = {"kind": 1, "n_prompt": 4, "progress_processed": 2, "progress_ms": 5}
    assert blank(completion(stream=True).chunk(sse=True, **fields)) == (
        'data: {"index":0,"content":"","tokens":[0],"stop":false,"id_slot":-1,'
        '"tokens_predicted":0,"tokens_evaluated":4,'
        '"prompt_progress":{"total":4,"cache":0,"processed":2,"time_ms":5}}\n\n'
    )
    assert blank(chat(stream=True).chunk(sse=True, n_cached=1, **fields)) == chat_event(
        '{"role":"assistant","content":null}',
        more=',"prompt_progress":{"total":4,"cache":1,"processed":2,"time_ms":5}',
    )


def test_an_openai_completion_stream() -> None:
    reply = new_reply(Kind.OAI_COMPLETION, {"prompt": "Once", "stream": True})
    assert token(reply, " upon", 1) == (
        'data: {"choices":[{"text":" upon","index":0,"logprobs":null,"finish_reason":null}],'
        '"created":0,"model":"smollm2","system_fingerprint":"X","object":"text_completion",'
        '"id":"chatcmpl-ID"}\n\n'
    )
    assert end(reply, stop=1) == (
        'data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}],'
        '"created":0,"model":"smollm2","system_fingerprint":"X","object":"text_completion",'
        '"usage":{"completion_tokens":3,"prompt_tokens":4,"total_tokens":7,'
        '"prompt_tokens_details":{"cached_tokens":0}},"id":"chatcmpl-ID",'
        f'"timings":{compact(TIMINGS)}}}\n\n'
    )


def test_a_chat_stream() -> None:
    reply = chat(stream=True)
    assert reply.chunk(sse=True, kind=2) == b""
    assert token(reply, "Bon", 1) == chat_event('{"role":"assistant","content":null}') + chat_event(
        '{"content":"Bon"}'
    )
    assert token(reply, "jour", 2) == chat_event('{"content":"jour"}')
    assert token(reply, "", 3) == ""  # nothing new to say
    timings = f',"timings":{compact(TIMINGS)}'
    assert end(reply, stop=1) == chat_event("{}", '"stop"', timings)


def test_usage_ends_a_chat_stream_that_asks_for_it() -> None:
    reply = chat(stream=True, stream_options={"include_usage": True})
    token(reply, "Hi", 1)
    assert end(reply).endswith(
        'data: {"choices":[],"created":0,"id":"chatcmpl-ID","model":"smollm2",'
        '"system_fingerprint":"X","object":"chat.completion.chunk",'
        '"usage":{"completion_tokens":3,"prompt_tokens":4,"total_tokens":7,'
        f'"prompt_tokens_details":{{"cached_tokens":0}}}},"timings":{compact(TIMINGS)}}}\n\n'
    )


# ---- whole replies ------------------------------------------------------------------------------


def test_a_whole_completion() -> None:
    reply = completion(return_tokens=True, seed=5)
    value = json.loads(
        end(reply, sse=False, text=b" upon a", tokens=[7, 8, 9], has_new_line=True, stop=2,
            stopping_word=" time", truncated=True)
    )  # fmt: skip
    assert value["generation_settings"]["seed"] == 5
    expected = {
        "content": " upon a", "tokens": [7, 8, 9], "stop_type": "word", "stopping_word": " time",
        "has_new_line": True, "truncated": True, "prompt": "Once", "tokens_cached": 6,
    }  # fmt: skip
    assert expected.items() <= value.items()


def test_a_whole_chat() -> None:
    assert end(chat(), sse=False, text=b"Bonjour.", stop=1, n_cached=2) == (
        '{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant",'
        '"content":"Bonjour."}}],"created":0,"model":"smollm2","system_fingerprint":"X",'
        '"object":"chat.completion","usage":{"completion_tokens":3,"prompt_tokens":4,'
        '"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}},"id":"chatcmpl-ID",'
        f'"timings":{compact(TIMINGS)}}}'
    )


def test_a_reply_shows_only_the_fields_asked_for() -> None:
    reply = completion(response_fields=["content", "timings/predicted_n", "none"])
    assert end(reply, sse=False, text=b"x") == '{"content":"x","timings/predicted_n":3}'


def test_each_choice_has_its_own_number_and_seed() -> None:
    prepared = frontend().prepare(
        Kind.COMPLETION, json.dumps({"prompt": ["a", "b"], "n": 2, "seed": 5}).encode()
    )
    shown = []
    for index in range(4):
        value = json.loads(prepared.reply(index // 2, index).final(sse=False))
        shown.append((value["index"], value["prompt"], value["generation_settings"]["seed"]))
    assert shown == [(0, "a", 5), (1, "a", 6), (2, "b", 5), (3, "b", 6)]


def test_tool_calls_are_found_in_the_text() -> None:
    template = (
        "{%- if tools %}{{ tools | tojson }}{% endif -%}{%- for m in messages %}<|im_start|>"
        "{{ m.role }}\n{{ m.content }}{%- if m.tool_calls %}{%- for t in m.tool_calls %}"
        "<tool_call>\n"
        '{"name": "{{ t.function.name }}", "arguments": {{ t.function.arguments | tojson }}}\n'
        "</tool_call>{%- endfor %}{%- endif %}<|im_end|>\n{%- endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    body = {"messages": MESSAGES, "tools": [tool]}
    text = b'<tool_call>\n{"name": "add", "arguments": {"x": 5}}\n</tool_call>'
    reply = new_reply(Kind.OAI_CHAT, body, chat_template=template)
    choice = json.loads(end(reply, sse=False, text=text, stop=1))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"x": 5}

    reply = new_reply(Kind.OAI_CHAT, {**body, "stream": True}, chat_template=template)
    streamed = "".join(token(reply, text[i : i + 1].decode(), i + 1) for i in range(len(text)))
    deltas = [json.loads(e)["choices"][0]["delta"] for e in re.findall("data: (.*)", streamed)]
    parts = [d["tool_calls"][0]["function"] for d in deltas if "tool_calls" in d]
    assert parts[0]["name"] == "add"
    assert json.loads("".join(p.get("arguments", "") for p in parts)) == {"x": 5}


# ---- probabilities, timings ---------------------------------------------------------------------

PROBS = (
    b'{"id":5,"prob":0.5,"text":[32,97],"probs":['
    b'{"id":5,"prob":0.5,"text":[32,97]},{"id":6,"prob":0.25,"text":[240,159]}]}'
)
SHOWN = (
    '{"id":5,"token":" a","bytes":[32,97],"logprob":-0.6931471824645996,"top_logprobs":['
    '{"id":5,"token":" a","bytes":[32,97],"logprob":-0.6931471824645996},'
    '{"id":6,"token":"","bytes":[240,159],"logprob":-1.3862943649291992}]}'
)


def test_probabilities_ride_with_their_token() -> None:
    chunk = token(completion(stream=True, n_probs=2), " a", 1, probs=PROBS)
    assert chunk.endswith(f',"completion_probabilities":[{SHOWN}]}}\n\n')
    chunk = token(chat(stream=True, logprobs=True), " a", 1, probs=PROBS)
    assert f'"logprobs":{{"content":[{SHOWN}]}}' in chunk
    assert "probabilities" not in token(completion(stream=True), " a", 1, probs=PROBS)


def test_a_streamed_probability_shows_the_text_that_went_out() -> None:
    chunk = token(completion(stream=True, n_probs=2), "", 1, probs=PROBS)
    assert '"completion_probabilities":[{"id":5,"token":"","bytes":[],' in chunk


def test_a_whole_reply_lists_all_probabilities() -> None:
    value = end(completion(n_probs=2), sse=False, probs=b"[" + PROBS + b"," + PROBS + b"]")
    assert value.endswith(f',"completion_probabilities":[{SHOWN},{SHOWN}]}}')
    as_sent = probs_as_sent([(PROBS, b""), (PROBS, b" a")])
    value = end(completion(n_probs=2), sse=False, probs=as_sent)
    held, sent = json.loads(value)["completion_probabilities"]
    assert (held["token"], sent["token"]) == ("", " a")
    value = end(
        completion(n_probs=2, post_sampling_probs=True), sse=False, probs=b"[" + PROBS + b"]"
    )
    assert json.loads(value)["completion_probabilities"][0]["top_probs"][1]["prob"] == 0.25


@pytest.mark.parametrize("kind", [Kind.COMPLETION, Kind.OAI_COMPLETION, Kind.OAI_CHAT])
def test_more_timings_are_merged_in(kind: Kind) -> None:
    body = {"prompt": "x", "messages": MESSAGES, "stream": True, "verbose": True}
    text = token(new_reply(kind, body), "a", 1, stats=Times(), extra_timings=b'{"queue_ms":1.5}')
    assert '"predicted_per_second":333.3333333333333,"queue_ms":1.5}' in text


def test_timings_before_the_first_token_count_nothing_generated() -> None:
    times = Times(predicted_n=0, predicted_ms=0.0)
    text = token(completion(stream=True, timings_per_token=True), "", 0, stats=times)
    timings = json.loads(text.removeprefix("data: "))["timings"]
    assert (timings["predicted_ms"], timings["predicted_per_second"]) == (0.0, 0.0)
    assert (timings["prompt_ms"], timings["prompt_n"]) == (8.0, 4)


# ---- what cannot be written ---------------------------------------------------------------------


def test_text_that_is_no_utf8_is_replaced() -> None:
    value = end(completion(), sse=False, text=b"a\xff\xc3")
    assert json.loads(value)["content"].startswith("a\ufffd")


def test_broken_arguments_are_refused() -> None:
    for fields in ({"stop": 9}, {"probs": b"{"}, {"probs": b"[5]"}, {"extra_timings": b"["}):
        with pytest.raises(NativeError):
            completion(n_probs=1).final(sse=False, stats=Times(), **fields)  # type: ignore[arg-type]
    prepared = frontend().prepare(Kind.COMPLETION, b'{"prompt":"a"}')
    for prompt, index in ((1, 0), (0, -1)):
        with pytest.raises(NativeError):
            prepared.reply(prompt, index)
