"""Requests through libstrata: what is parsed, rendered and tokenised, and what is refused how.

Expected errors are those of llama-server for the same bodies.
"""

from __future__ import annotations

import gc
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strata_plugin.runtime.native import (
    Kind,
    NativeError,
    Prepared,
    Sampler,
    build_info,
    schema_to_grammar,
)
from tests.engine.smollm2 import frontend, need_native_library, new_frontend, vocabulary

need_native_library()

MESSAGES = [{"role": "user", "content": "Say hi."}]
RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
)


def prepare(kind: Kind, body: Any, **config: Any) -> Prepared:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (new_frontend(**config) if config else frontend()).prepare(kind, data)


def completion(**body: Any) -> Prepared:
    return prepare(Kind.COMPLETION, {"prompt": "Hello", **body})


def chat(**body: Any) -> Prepared:
    return prepare(Kind.OAI_CHAT, {"messages": MESSAGES, **body})


def text_of(tokens: Any) -> str:
    body = json.dumps({"tokens": [int(t) for t in tokens]}).encode()
    content: str = json.loads(frontend().detokenize(body))["content"]
    return content


# ---- prompts ------------------------------------------------------------------------------------


def test_a_prompt_may_be_text_tokens_or_both() -> None:
    assert completion(prompt="Hello world").tokens(0).tolist() == [19556, 905]
    assert completion(prompt=[19556, 905]).tokens(0).tolist() == [19556, 905]
    assert completion(prompt=[19556, " world"]).tokens(0).tolist() == [19556, 905]
    assert completion(prompt={"prompt_string": "Hello world"}).tokens(0).tolist() == [19556, 905]
    assert completion(prompt="").tokens(0).tolist() == []


def test_several_prompts_are_kept_apart() -> None:
    p = completion(prompt=["Hello", [905], "Hello world"], n_predict=5)
    assert p.info["n_prompts"] == 3
    assert [p.tokens(i).tolist() for i in range(3)] == [[19556], [905], [19556, 905]]
    with pytest.raises(IndexError):
        p.tokens(3)


def test_special_tokens_in_a_prompt_are_read_as_such() -> None:
    assert completion(prompt="<|im_start|>user").tokens(0)[0] == 1


def test_a_chat_is_rendered_with_the_models_template() -> None:
    p = chat()
    assert text_of(p.tokens(0)) == RENDERED
    body = json.dumps({"messages": MESSAGES}).encode()
    assert json.loads(frontend().apply_template(body)) == {"prompt": RENDERED}


def test_message_starts_are_token_positions() -> None:
    p = chat(messages=[*MESSAGES, {"role": "assistant", "content": "Hi."}, *MESSAGES])
    begins = [i for i, t in enumerate(p.tokens(0).tolist()) if t == 1]  # <|im_start|>
    starts = p.info["message_starts"][0]
    assert len(starts) >= 2 and set(starts) <= set(begins)
    assert completion().info["message_starts"] == [[]]


def test_another_template_may_be_given() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    p = prepare(Kind.OAI_CHAT, {"messages": MESSAGES}, chat_template=template)
    assert text_of(p.tokens(0)) == "[user]Say hi."


def test_tokens_outlive_their_request_and_cannot_be_written() -> None:
    tokens = completion(prompt=list(range(100, 1100))).tokens(0)
    gc.collect()
    completion(prompt=list(range(2000, 3000)))
    assert tokens.tolist() == list(range(100, 1100))
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


def test_a_frontend_serves_several_threads() -> None:
    expected = chat(temperature=0.5).tokens(0).tolist()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: chat(temperature=0.5).tokens(0).tolist(), range(40)))
    assert results == [expected] * 40


# ---- settings -----------------------------------------------------------------------------------


def test_info_tells_what_the_request_asks_for() -> None:
    p = completion(
        n_predict=7, n_probs=3, stop=["a", "b"], seed=5, id_slot=1, stream=True, n=2,
        return_progress=True, timings_per_token=True, cache_prompt=False, n_keep=2,
        lora=[{"id": 0, "scale": 0.5}], t_max_predict_ms=9, n_indent=4, sse_ping_interval=3,
        stream_options={"include_usage": True}, return_tokens=True, post_sampling_probs=True,
    )  # fmt: skip
    info = dict(p.info)
    assert info.pop("id").startswith("chatcmpl-")
    assert info == {
        "n_prompts": 1, "n_cmpl": 2, "stream": True, "include_usage": True, "n_predict": 7,
        "n_keep": 2, "n_discard": 0, "n_indent": 4, "n_probs": 3, "post_sampling_probs": True,
        "t_max_predict_ms": 9, "return_tokens": True, "return_progress": True,
        "timings_per_token": True, "cache_prompt": False, "sse_ping_interval": 3, "id_slot": 1,
        "seed": 5, "stop": ["a", "b"], "lora": [{"id": 0, "scale": 0.5}], "message_starts": [[]],
    }  # fmt: skip


def test_names_of_other_apis_are_understood() -> None:
    assert completion(max_tokens=3).info["n_predict"] == 3
    assert completion(logprobs=4).info["n_probs"] == 4
    assert chat(logprobs=True, top_logprobs=6).info["n_probs"] == 6
    assert chat(max_completion_tokens=9).info["n_predict"] == 9


def test_defaults_come_from_the_command_line() -> None:
    config = {"n_predict": 12, "n_keep": 3, "antiprompt": ["stop"], "sse_ping_interval": 7}
    sampling = {"temperature": 0.25, "top_k": 3, "seed": 9}
    p = prepare(Kind.COMPLETION, {"prompt": "x"}, **config, sampling=sampling)
    settings = json.loads(p.settings(False))
    assert (p.info["n_predict"], p.info["stop"], p.info["seed"]) == (12, ["stop"], 9)
    assert (settings["temperature"], settings["top_k"]) == (0.25, 3)
    shown = new_frontend(sampling=sampling).info()["default_params"]
    assert (shown["temperature"], shown["top_k"], shown["seed"]) == (0.25, 3, 9)


def test_settings_have_a_short_form() -> None:
    p = completion(stop=["a"], logit_bias=[[5, 1.5]])
    whole, short = json.loads(p.settings(False)), json.loads(p.settings(True))
    assert whole["stop"] == ["a"] and whole["logit_bias"] == [{"bias": 1.5, "token": 5}]
    assert "stop" not in short
    assert short.items() <= whole.items()


def test_sampling_holds_the_request_without_its_prompt() -> None:
    p = chat(temperature=0.5, metadata={"x": "y" * 1000}, response_format={"type": "json_object"})
    sampling = json.loads(p.sampling())
    assert sampling["temperature"] == 0.5 and "root" in sampling["grammar"]
    assert not sampling.keys() & {"prompt", "messages", "tools", "metadata", "chat_parser", "stop"}
    assert Sampler(frontend(), p.sampling()).save()


def test_sampling_holds_all_that_a_sampler_depends_on() -> None:
    """Every sampling field of a request, set to something of its own, arrives in the engine."""
    fields = {
        "seed": 7, "temperature": 0.5, "dynatemp_range": 0.25, "dynatemp_exponent": 2.0,
        "top_k": 7, "top_p": 0.5, "min_p": 0.125, "top_n_sigma": 1.5, "xtc_probability": 0.25,
        "xtc_threshold": 0.25, "typical_p": 0.75, "repeat_last_n": 7, "repeat_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "dry_multiplier": 0.5, "dry_base": 2.0,
        "dry_allowed_length": 7, "dry_penalty_last_n": 7, "dry_sequence_breakers": ["x"],
        "mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.5, "adaptive_target": 0.5,
        "adaptive_decay": 0.5, "ignore_eos": True, "logit_bias": [[5, 1.5]], "n_probs": 7,
        "min_keep": 7, "grammar": 'root ::= "a"', "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "xyzzy plugh"}],
        "preserved_tokens": ["<|im_start|>"],
        "generation_prompt": "x", "samplers": ["top_k"], "post_sampling_probs": True,
    }  # fmt: skip
    plain, all_set = completion(), completion(**fields)
    before, expected = (json.loads(p.settings(False)) for p in (plain, all_set))
    assert all(before[name] != expected[name] for name in fields)
    again = completion(**json.loads(all_set.sampling()))
    assert json.loads(again.settings(False)) == expected


def test_an_engines_frontend_needs_no_templates() -> None:
    f = new_frontend(templates=False)
    assert "chat_template" not in f.info()
    Sampler(f, completion(grammar='root ::= "a"').sampling())
    with pytest.raises(NativeError, match="without chat templates"):
        f.prepare(Kind.OAI_CHAT, json.dumps({"messages": MESSAGES}).encode())


def test_a_frontend_tells_about_its_model() -> None:
    info = frontend().info()
    assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "{% for message in messages %}" in info["chat_template"]
    assert info["chat_template_caps"]["supports_system_role"] is True
    assert info["example_prompt"].startswith("<|im_start|>system")
    assert info["default_params"]["top_k"] == 40


def test_the_build_names_its_patches() -> None:
    assert any(name.startswith("0002") for name in build_info()["patches"])


# ---- other routes -------------------------------------------------------------------------------


def test_tokenize_and_detokenize_are_inverse() -> None:
    body = json.dumps({"content": "héllo 🦙"}).encode()
    tokens = json.loads(frontend().tokenize(body))["tokens"]
    assert text_of(tokens) == "héllo 🦙"
    assert json.loads(frontend().tokenize(b"{}")) == {"tokens": []}
    pieces = json.loads(
        frontend().tokenize(json.dumps({"content": "a🦙", "with_pieces": True}).encode())
    )["tokens"]
    assert pieces[0] == {"id": 81, "piece": "a"}
    assert all(isinstance(p["piece"], list) for p in pieces[1:])  # parts of a character: bytes


def test_a_schema_becomes_a_grammar() -> None:
    assert 'root ::= "\\"a\\""' in schema_to_grammar({"const": "a"})


def test_a_models_text_is_parsed() -> None:
    body = {"text": "Hello", "partial": False}
    assert json.loads(frontend().chat_parse(json.dumps(body).encode())) == {
        "role": "assistant", "content": "Hello",
    }  # fmt: skip


# ---- refused ------------------------------------------------------------------------------------

ERRORS: list[tuple[Kind, Any, int, str]] = [
    (Kind.COMPLETION, b"{", 500, "parse error"),
    (Kind.COMPLETION, b"", 500, "parse error"),
    (Kind.COMPLETION, b'{"prompt":"\xff"}', 500, "parse error"),
    (Kind.COMPLETION, [], 400, "cannot use at()"),
    (Kind.COMPLETION, {}, 400, "key 'prompt' not found"),
    (Kind.COMPLETION, {"prompt": 5}, 400, "elements must be a string"),
    (Kind.COMPLETION, {"prompt": []}, 400, "must not be empty"),
    (Kind.COMPLETION, {"prompt": [1, -1]}, 400, "Prompt contains invalid tokens"),
    (Kind.COMPLETION, {"prompt": [49152]}, 400, "Prompt contains invalid tokens"),
    (Kind.COMPLETION, {"prompt": "a", "temperature": "hot"}, 400, "Field 'temperature'"),
    (Kind.COMPLETION, {"prompt": "a", "n_predict": -2}, 400, "Field 'n_predict'"),
    (Kind.COMPLETION, {"prompt": "a", "n": 3}, 400, "Field 'n'"),
    (Kind.COMPLETION, {"prompt": "a", "stop": [5]}, 400, "Field 'stop'"),
    (Kind.COMPLETION, {"prompt": "a", "grammar": "root ::= ("}, 400, "failed to parse grammar"),
    (Kind.COMPLETION, {"prompt": "a", "grammar": "root ::= root"}, 400, "failed to parse grammar"),
    (Kind.COMPLETION, {"prompt": "a", "json_schema": {"type": "x"}}, 400, "Field 'json_schema'"),
    (Kind.COMPLETION, {"prompt": "a", "repeat_penalty": 0}, 400, "penalty_repeat"),
    (Kind.COMPLETION, {"prompt": "a", "reasoning_format": "x"}, 400, "Field 'reasoning_format'"),
    (
        Kind.COMPLETION,
        {"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}},
        400,
        "does not support multimodal",
    ),
    (Kind.OAI_CHAT, {}, 400, "'messages' is required"),
    (Kind.OAI_CHAT, {"messages": 5}, 400, "Expected 'messages' to be an array"),
    (Kind.OAI_CHAT, {"messages": [{"role": "user"}]}, 400, "must contain 'content'"),
    (
        Kind.OAI_CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        500,
        "image input is not supported",
    ),
    (Kind.OAI_CHAT, {"messages": MESSAGES, "top_logprobs": 2}, 400, "requires logprobs"),
    (
        Kind.OAI_CHAT,
        {"messages": MESSAGES, "response_format": {"type": "x"}},
        400,
        "response_format type",
    ),
    (Kind.INFILL, {"input_prefix": "a", "input_suffix": "b"}, 501, "Infill is not supported"),
]


@pytest.mark.parametrize(("kind", "body", "code", "message"), ERRORS)
def test_what_llama_server_refuses_is_refused_alike(
    kind: Kind, body: Any, code: int, message: str
) -> None:
    with pytest.raises(NativeError) as caught:
        prepare(kind, body)
    types = {400: "invalid_request_error", 500: "server_error", 501: "not_supported_error"}
    assert (caught.value.code, caught.value.type) == (code, types[code])
    assert message in caught.value.message


@pytest.mark.parametrize("config", [{"n_parallel": 0}, {"reasoning_format": "x"}, {"n_batch": "x"},
                                    {"chat_template": "{% for %}"}])  # fmt: skip
def test_a_broken_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(NativeError) as caught:
        new_frontend(**config)
    assert caught.value.message


def test_a_prepared_request_outlives_its_frontend() -> None:
    p = new_frontend().prepare(Kind.COMPLETION, b'{"prompt":"Hello"}')
    gc.collect()
    assert p.reply(0, 0).final(sse=False, text=b"x")
    assert vocabulary().handle
