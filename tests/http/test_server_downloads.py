"""A server that downloads its model, from a stub of the hub."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from tests.http.server_process import ServerProcess, need_native_library
from tests.models import tiny_model
from tests.unit.model_host import model_host

COMMIT = "d" * 40
SMALL = ("-c", "256", "-fa", "off", "--cache-disk", "0", "--no-warmup")


def test_a_download_that_was_killed_is_gone_on_with_and_then_served(tmp_path: Path) -> None:
    need_native_library()
    content = tiny_model("dense").read_bytes()
    half = len(content) // 2
    killed = threading.Event()

    def first_half(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:half])
        killed.wait(30)
        handler.close_connection = True

    with model_host() as host:
        env = {"LLAMA_CACHE": str(tmp_path), "HF_ENDPOINT": host.url}
        host.repository("stub/tiny", COMMIT, {"tiny-Q8_0.gguf": content})
        path = f"/stub/tiny/resolve/{COMMIT}/tiny-Q8_0.gguf"
        whole, host.routes[path] = host.routes[path], first_half
        with ServerProcess("-hf", "stub/tiny:Q8_0", *SMALL, env=env, wait=False) as server:
            deadline = time.monotonic() + 30
            while sum(p.stat().st_size for p in tmp_path.rglob("*.downloadInProgress")) < half // 2:
                assert time.monotonic() < deadline and server.process.poll() is None
                time.sleep(0.02)
            server.process.kill()
        killed.set()
        host.routes[path] = whole
        host.asked.clear()

        with ServerProcess("-hf", "stub/tiny:Q8_0", *SMALL, env=env) as server:
            with server.client() as client:
                answer = client.post("/completion", json={"prompt": [1, 2, 3], "n_predict": 2})
                assert answer.json()["tokens_predicted"] == 2
                (model,) = client.get("/v1/models").json()["data"]
            assert model["id"] == "stub/tiny:Q8_0"
            assert "going on with tiny-Q8_0.gguf at " in server.err.read_text()
        (asked,) = host.bodies()
    begin = int(asked.headers["Range"].removeprefix("bytes=").partition("-")[0])
    assert half // 2 <= begin <= half
    snapshot = tmp_path / f"models--stub--tiny/snapshots/{COMMIT}"
    assert (snapshot / "tiny-Q8_0.gguf").read_bytes() == content
