"""The real server with the default model, through httpx and the real OpenAI client."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.http.server_process import ServerProcess

QUESTION: list[Any] = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture
def client(server: ServerProcess) -> httpx.Client:
    return server.client()


@pytest.fixture
def openai(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key="none", timeout=60, max_retries=0)


def complete(client: httpx.Client, **request: Any) -> Any:
    reply = client.post("/completion", json={"temperature": 0, "n_predict": 8, **request})
    assert reply.status_code == 200, reply.text
    return reply.json()


def read_once(client: httpx.Client, path: str, **request: Any) -> None:
    """Have the prompt cached, so that whoever asks again starts from its last token.

    A prompt read from its first token may be answered otherwise than one that was cached: how
    many tokens share a step moves the logits by more than the margin between two words.
    """
    assert client.post(path, json={**request, "n_predict": 1, "temperature": 0}).status_code == 200


def stream(client: httpx.Client, path: str, **request: Any) -> list[Any]:
    found = []
    with client.stream("POST", path, json={**request, "stream": True}) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                found.append(json.loads(line[len("data: ") :]))
    return found


def test_the_openai_client_streams_a_chat(openai: OpenAI, client: httpx.Client) -> None:
    read_once(client, "/v1/chat/completions", messages=QUESTION)
    chunks = list(
        openai.chat.completions.create(
            model="any",
            messages=QUESTION,
            stream=True,
            max_tokens=12,
            temperature=0,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12
    finished = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert finished[-1] == "length" and set(finished[:-1]) == {None}
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    whole = openai.chat.completions.create(
        model="any",
        messages=QUESTION,
        max_tokens=12,
        temperature=0,
    )
    assert whole.choices[0].message.content == text != ""
    assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1


def test_the_openai_client_sees_a_prompt_that_is_too_long(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="maximum context length is 2048 tokens") as caught:
        openai.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "word " * 3000}]
        )
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["n_ctx"] == 2048


def test_streamed_pieces_add_up_to_the_whole_reply(client: httpx.Client) -> None:
    read_once(client, "/completion", prompt="Once upon a time")
    whole = complete(client, prompt="Once upon a time")
    pieces = stream(client, "/completion", prompt="Once upon a time", temperature=0, n_predict=8)
    assert "".join(p["content"] for p in pieces) == whole["content"] != ""
    assert pieces[-1]["stop_type"] == whole["stop_type"] == "limit"
    assert [p["stop"] for p in pieces] == [False] * 8 + [True]
    assert pieces[-1]["timings"]["predicted_n"] == 8


def test_timings_count_what_was_cached(client: httpx.Client) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 10
    first = complete(client, prompt=prompt + "A")
    second = complete(client, prompt=prompt + "A")
    third = complete(client, prompt=prompt + "A")
    n = first["tokens_evaluated"]
    for again in (second, third):
        assert again["timings"]["cache_n"] == n - 1
        assert again["timings"]["prompt_n"] == 1
    assert second["content"] == third["content"]


def test_progress_falls_on_batch_borders() -> None:
    with ServerProcess("-c", "1024", "-b", "128", "-ub", "128") as small:
        events = stream(
            small.client(),
            "/completion",
            prompt=list(range(100, 400)),
            n_predict=1,
            return_progress=True,
        )
    processed = [e["prompt_progress"]["processed"] for e in events if "prompt_progress" in e]
    assert processed == [0, 128, 256, 300]


def test_stop_strings_never_leak(client: httpx.Client) -> None:
    read_once(client, "/completion", prompt="1, 2, 3, 4,")
    plain = complete(client, prompt="1, 2, 3, 4,", n_predict=24)["content"]
    word = plain.strip().split()[2].rstrip(",")
    request = {"prompt": "1, 2, 3, 4,", "n_predict": 24, "stop": [word]}
    whole = complete(client, **request)
    assert whole["stop_type"] == "word" and whole["stopping_word"] == word
    assert word not in whole["content"]
    pieces = stream(client, "/completion", temperature=0, **request)
    assert "".join(p["content"] for p in pieces) == whole["content"]


def test_several_choices_and_prompts(client: httpx.Client) -> None:
    values = complete(client, prompt=["Hello", "World"], n_predict=3)
    assert [v["index"] for v in values] == [0, 1]
    reply = client.post(
        "/v1/completions", json={"prompt": "Hello", "n": 2, "max_tokens": 3, "seed": 4}
    ).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1]


def test_a_grammar_is_followed_and_a_broken_one_refused(client: httpx.Client) -> None:
    value = complete(client, prompt="Say yes or no:", grammar='root ::= "yes" | "no"')
    assert value["content"] in ("yes", "no")
    reply = client.post("/completion", json={"prompt": "a", "grammar": 'root ::= "a'})
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_json_schema(openai: OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = openai.chat.completions.create(
        model="any", messages=QUESTION, max_tokens=40, temperature=0, response_format=wanted
    )
    content = reply.choices[0].message.content or ""
    assert content.startswith("{")
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content)["n"], int)


def test_tokens_and_text_round_trip(client: httpx.Client) -> None:
    text = "Grüße, 世界! 🙂"
    tokens = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    prompt = client.post("/apply-template", json={"messages": QUESTION}).json()["prompt"]
    assert "Name three colours." in prompt and prompt.endswith("assistant\n")


def test_introspection(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["params"]["seed"] == 1
    assert set(props["strata"]) == {"version", "patches", "llama_commit", "kernels"}
    assert props["strata"]["kernels"]["cpu_multi_row"]["built"] is True
    model = client.get("/v1/models").json()["data"][0]
    assert model["id"].startswith("SmolLM2-135M")
    assert model["meta"]["n_ctx_train"] == 8192
    slots = client.get("/slots").json()
    assert [s["id"] for s in slots] == [0, 1, 2, 3]
    assert all(s["n_ctx"] == 2048 for s in slots)
    before = metric(client, "tokens_predicted_total")
    complete(client, prompt="Hi", n_predict=5)
    assert metric(client, "tokens_predicted_total") == before + 5


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(x for x in lines if x.startswith(f"llamacpp:{name} ")).split()[1])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'{"prompt": {}}',
        b'{"prompt": [1.5]}',
        b'{"prompt": [999999999]}',
        b'{"prompt": "a", "n_predict": "x"}',
        b'{"prompt": "a", "n_predict": -7}',
        b'{"prompt": "a", "n": 1000}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "a", "json_schema": {"type": "nonsense"}}',
    ],
)
def test_bad_requests_get_400_and_the_server_goes_on(client: httpx.Client, body: bytes) -> None:
    reply = client.post("/completion", content=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert client.get("/health").json() == {"status": "ok"}


def test_more_clients_than_slots_are_all_served(client: httpx.Client, server: Any) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        with server.client() as own:
            value = complete(own, prompt=f"{number} plus one is", n_predict=4)
            answers[number] = value["content"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 12 and all(answers.values())


def test_a_client_that_leaves_frees_its_slot(client: httpx.Client, server: Any) -> None:
    request = {"prompt": "Count:", "n_predict": -1, "ignore_eos": True, "stream": True}
    with server.client() as own, own.stream("POST", "/completion", json=request) as reply:
        lines = reply.iter_lines()  # kept: the stream is closed with its iterator
        next(lines)
        assert metric(client, "requests_processing") == 1
    deadline = time.monotonic() + 5
    while metric(client, "requests_processing"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_after_a_client_left_in_mid_prefill_its_retry_reads_only_the_rest() -> None:
    prompt = [100 + n % 1000 for n in range(1500)]
    with ServerProcess("-c", "2048", "-b", "128", "-ub", "128", "--metrics") as small:
        request = {"prompt": prompt, "n_predict": 1, "return_progress": True, "stream": True}
        seen = 0
        with small.client() as own, own.stream("POST", "/completion", json=request) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    seen = json.loads(line[6:])["prompt_progress"]["processed"]
                if seen >= 256:
                    break
        with small.client() as client:
            deadline = time.monotonic() + 5
            while metric(client, "requests_processing"):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            again = complete(client, prompt=prompt, n_predict=1)
    assert seen <= again["timings"]["cache_n"] < 1500
    assert again["timings"]["cache_n"] + again["timings"]["prompt_n"] == 1500
