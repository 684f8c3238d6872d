"""Starting, refusing to start, stopping."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.http.server_process import (
    ServerProcess,
    alive,
    children,
    listening_port,
    need_native_library,
    run_to_end,
)
from tests.models import tiny_model


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--rpc", "x"], 2, "--rpc: known llama-server flag, not available in strata yet"),
        (["--draft", "5"], 2, "--draft: removed from llama-server; use --spec-draft-n-max"),
        (["--prot", "5"], 2, "--prot: unknown flag; did you mean --port?"),
        (["--port", "99999"], 2, "--port: must be at most 65535, got 99999"),
        (["-m", "/nowhere.gguf"], 1, "cannot read model '/nowhere.gguf': No such file"),
        (["-m", __file__], 1, "is not a GGUF file"),
        (["-hf", "nobody/nothing", "--offline"], 1, "nobody/nothing is not in the cache"),
        (["-hf", "nobody/nothing"], 1, "cannot reach 127.0.0.1:9: Connection refused"),
        (["-mu", "http://127.0.0.1:9/x.gguf"], 1, "cannot reach 127.0.0.1:9: Connection refused"),
        (["-hf", "nobody/nothing", "--max-priority", "key-1=3"], 2, "--max-priority: "),
        (["--host", "203.0.113.7"], 1, "cannot listen on 203.0.113.7:8080"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    args: list[str], code: int, message: str, tmp_path: Path
) -> None:
    env = {"LLAMA_CACHE": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    result, out, err = run_to_end(*args, env=env)
    assert result == code
    assert out == ""
    assert err.startswith("strata-server: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with listening_port() as port:
        began = time.monotonic()
        code, _, err = run_to_end("--port", str(port))
    assert code == 1
    assert err == f"strata-server: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert time.monotonic() - began < 5


def test_a_damaged_model_stops_the_server_with_one_line(tmp_path: Path) -> None:
    need_native_library()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 5, 5) + os.urandom(1000))
    code, out, err = run_to_end("-m", str(damaged), "--port", "0", "-lv", "0")
    assert (code, out) == (1, "")
    assert [line for line in err.splitlines() if line.startswith("strata-server: ")]
    assert err.splitlines()[-1].startswith("strata-server: ")


def test_help_and_version() -> None:
    code, out, _ = run_to_end("--help")
    assert code == 0
    assert "--ctx-size" in out and "--max-prompt-tokens" in out
    code, out, _ = run_to_end("--version")
    assert code == 0
    assert out.startswith("strata ")


def test_while_the_model_loads_requests_get_503() -> None:
    need_native_library()
    socket_path = f"/tmp/strata-test-{os.getpid()}.sock"
    server = ServerProcess("--host", socket_path, "-c", "512", wait=False)
    with server:
        transport = httpx.HTTPTransport(uds=socket_path)
        seen: set[int] = set()
        with httpx.Client(transport=transport, base_url="http://x", timeout=30) as client:
            deadline = time.monotonic() + 60
            while 200 not in seen:
                assert time.monotonic() < deadline
                try:
                    seen.add(client.get("/health").status_code)
                except httpx.ConnectError:  # not bound yet
                    time.sleep(0.01)
        assert seen == {503, 200}
    assert server.process.returncode == 0
    assert not Path(socket_path).exists()


def test_what_is_printed_when_requests_are_served() -> None:
    need_native_library()
    with ServerProcess("-c", "512", "--api-key", "sesame", "-a", "small") as server:
        text = server.out.read_text()
        assert f"Strata serves small at {server.url} (4 slots, up to 512 tokens each)" in text
        assert f"curl -N {server.url}/v1/chat/completions" in text
        assert f'base_url="{server.url}/v1"' in text
        with server.client() as client:
            assert client.get("/v1/models").status_code == 401
            key = {"Authorization": "Bearer sesame"}
            assert client.get("/v1/models", headers=key).json()["data"][0]["id"] == "small"
            request = {"prompt": "a secret prompt", "n_predict": 2}
            assert client.post("/completion", json=request, headers=key).status_code == 200
    log = server.err.read_text()
    assert "prompt 3 tokens" in log
    assert "sesame" not in log + text
    assert "secret" not in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_streams_and_both_processes_quickly(number: signal.Signals) -> None:
    need_native_library()
    with ServerProcess("-c", "1024", "--drain-s", "0.2") as server:
        processes = [server.process.pid, *children(server.process.pid)]
        assert len(processes) == 2
        lines: list[str] = []
        started = threading.Event()

        def read() -> None:
            request = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": True}
            with (
                server.client() as client,
                client.stream("POST", "/completion", json=request) as reply,
            ):
                for line in reply.iter_lines():
                    lines.append(line)
                    started.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert started.wait(30)
        began = time.monotonic()
        server.process.send_signal(number)
        assert server.process.wait(10) == 0
        took = time.monotonic() - began
        reader.join(10)
        last = json.loads([x for x in lines if x][-1].removeprefix("data: "))
        assert last["error"]["type"] == "unavailable_error"
        assert took < 4  # 2 s on a machine that is not busy
        assert not alive(processes)


def test_when_the_server_is_stopped_streams_that_end_soon_end_whole() -> None:
    request = {"prompt": "a", "n_predict": 300, "ignore_eos": True, "stream": True}
    flags = ("-m", str(tiny_model("dense")), "-c", "1024", "--drain-s", "40")
    with ServerProcess(*flags) as server, server.client() as client:
        with client.stream("POST", "/completion", json=request) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            values = [json.loads(x.removeprefix("data: ")) for x in (first, *lines) if x]
        assert values[-1].get("stop") and values[-1]["tokens_predicted"] == 300
        assert server.process.wait(20) == 0


def test_an_engine_that_dies_is_replaced_and_its_streams_go_on() -> None:
    body = {
        "messages": [{"role": "user", "content": "Tell me a long story about a fox."}],
        "stream": True,
        "max_tokens": 400,
        "ignore_eos": True,
        "temperature": 0,
    }

    def said(reply: httpx.Response, after: int = -1, pid: int = 0) -> str:
        """The text of a stream; the engine `pid` is killed after so many pieces."""
        words = []
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                value = json.loads(line[len("data: ") :])
                words += [c["delta"].get("content") or "" for c in value["choices"]]
                if len(words) == after:
                    os.kill(pid, signal.SIGKILL)
        return "".join(words)

    flags = ("-m", str(tiny_model("dense")), "-c", "1024")
    with ServerProcess(*flags) as server, server.client() as client:
        path = "/v1/chat/completions"
        with client.stream("POST", path, json=body) as reply:
            undisturbed = said(reply)
        (engine,) = children(server.process.pid)
        with client.stream("POST", path, json=body) as reply:
            assert said(reply, 4, engine) == undisturbed
        (other,) = children(server.process.pid)
        assert other != engine
        assert client.get("/health").status_code == 200
        assert "was ended by SIGKILL" in server.err.read_text()
        assert server.stop() == 0


def test_what_was_read_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    need_native_library()
    prompt = list(range(1000, 1900))
    request = {"prompt": prompt, "n_predict": 4, "temperature": 0}
    keys = ["--api-key", "mine,yours", "--cache-dir", str(tmp_path)]
    mine, yours = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours"))
    with ServerProcess("-c", "2048", *keys) as server, server.client() as client:
        first = client.post("/completion", json=request, headers=mine).json()
        time.sleep(2)
        for pid in (*children(server.process.pid), server.process.pid):
            os.kill(pid, signal.SIGKILL)
        server.process.wait(10)
    # keys in another order are still the same keys
    keys[1] = "another,yours,mine"
    with ServerProcess("-c", "2048", *keys) as server, server.client() as client:
        time.sleep(0.5)
        other = client.post("/completion", json=request, headers=yours).json()
        again = client.post("/completion", json=request, headers=mine).json()
        view = client.get("/cache", headers=mine).json()
        prompt[400:410] = range(5000, 5010)
        headers = {**mine, "X-Request-Id": "changed one"}
        client.post("/completion", json={**request, "prompt": prompt}, headers=headers)
        told = client.get("/cache/explain/changed one", headers=mine).json()
        assert client.get("/cache/explain/changed one", headers=yours).status_code == 404
        assert client.get("/cache").status_code == 401
    assert (told["cause"], told["differs_at"]) == ("edited", 400)
    assert "<>" in told["stored_text"] and told["stored_text"] != told["prompt_text"]
    assert view["disk"]["hit_tokens"] >= 800 and view["ram"]["blocks"] > 0
    assert other["timings"]["cache_n"] == 0
    assert again["timings"]["cache_n"] >= 0.99 * len(prompt)
    assert again["content"] == first["content"]


def test_without_a_disk_tier_nothing_is_written(tmp_path: Path) -> None:
    need_native_library()
    folder = tmp_path / "prompts"
    args = ("-c", "1024", "--cache-dir", str(folder), "--cache-disk", "0")
    with ServerProcess(*args) as server, server.client() as client:
        client.post("/completion", json={"prompt": "a " * 300, "n_predict": 1})
    assert not folder.exists()
