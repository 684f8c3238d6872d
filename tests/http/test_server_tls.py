"""HTTPS and several addresses with a real server, and what it says when it can't serve them."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from openai import OpenAI

from tests.http.server_process import ServerProcess, need_native_library, run_to_end
from tests.unit.certificates import write_pair

QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_all_addresses_speak_https_when_there_is_a_certificate(tmp_path: Path) -> None:
    need_native_library()
    ca = trustme.CA()
    cert, key = write_pair(tmp_path, "server", ca, "127.0.0.1", "127.0.0.2", "localhost")
    trusted = ssl.create_default_context()
    ca.configure_trust(trusted)
    port, path = free_port(), f"/tmp/strata-test-tls-{os.getpid()}.sock"
    hosts = f"127.0.0.1,127.0.0.2,{path}"
    tls = ("--ssl-cert-file", str(cert), "--ssl-key-file", str(key))
    with ServerProcess("--host", hosts, "--port", str(port), "-c", "512", *tls) as server:
        text = server.out.read_text()
        for host in ("127.0.0.1", "127.0.0.2"):
            url = f"https://{host}:{port}"
            assert f" at {url} " in text
            assert f"curl -N {url}/v1/chat/completions" in text
            assert f"Browser: {url}/ to chat, {url}/strata " in text
            with httpx.Client(base_url=url, verify=trusted, timeout=60) as client:
                assert client.get("/health").json() == {"status": "ok"}
                assert stream(client)[-1] == "data: [DONE]"
        transport = httpx.HTTPTransport(uds=path, verify=trusted)
        with httpx.Client(transport=transport, base_url="https://localhost") as client:
            assert client.get("/health").status_code == 200
        with httpx.Client(verify=trusted) as client:
            base = f"https://127.0.0.1:{port}/v1"
            openai = OpenAI(base_url=base, api_key="none", http_client=client)
            assert openai.models.list().data
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://127.0.0.1:{port}/health")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/health")
        with socket.create_connection(("127.0.0.1", port)) as garbage:
            garbage.sendall(b"\x00" * 300)
        assert httpx.get(f"https://127.0.0.2:{port}/health", verify=trusted).status_code == 200
    assert server.process.returncode == 0
    assert "Traceback" not in server.err.read_text()
    assert not Path(path).exists()


def stream(client: httpx.Client) -> list[str]:
    with client.stream("POST", "/v1/chat/completions", json=QUESTION) as reply:
        assert reply.status_code == 200
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert json.loads(lines[0].removeprefix("data: "))["choices"]
    return lines


def test_several_addresses_are_served_at_once_below_a_prefix(tmp_path: Path) -> None:
    need_native_library()
    port, path = free_port(), f"/tmp/strata-test-many-{os.getpid()}.sock"
    args = ("--host", f"127.0.0.1,{path},127.0.0.2", "--port", str(port), "--api-prefix", "/llm")
    more = ("--path", str(tmp_path), "--ui-config", '{"theme": "dark"}', "--threads-http", "8")
    (tmp_path / "index.html").write_text("mine")
    with ServerProcess(*args, *more, "-c", "512") as server:
        text = server.out.read_text()
        urls = re.findall(r" at (\S+) ", text)
        assert urls == [
            f"http://127.0.0.1:{port}/llm",
            f"unix://{path}/llm",
            f"http://127.0.0.2:{port}/llm",
        ]
        assert "--threads-http changes nothing here" in server.err.read_text()
        for host in ("127.0.0.1", "127.0.0.2"):
            base = f"http://{host}:{port}"
            with httpx.Client(base_url=base) as client:
                assert client.get("/llm/health").status_code == 200
                assert client.get("/health").status_code == 404
                assert client.get("/llm/").text == "mine"
                assert "<title>Strata" in client.get("/llm/strata").text
                assert client.get("/llm/props").json()["ui_settings"] == {"theme": "dark"}
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://x") as client:
            assert client.get("/llm/health").status_code == 200


def test_a_pair_that_does_not_fit_is_told_in_one_line(tmp_path: Path) -> None:
    ca = trustme.CA()
    cert, key = write_pair(tmp_path, "a", ca, "localhost")
    _, other = write_pair(tmp_path, "b", ca, "localhost")
    for args, code, message in (
        (["--ssl-cert-file", str(cert)], 2, "HTTPS needs --ssl-key-file, too"),
        (
            ["--ssl-cert-file", str(cert), "--ssl-key-file", str(tmp_path / "none")],
            2,
            f"--ssl-key-file: cannot read '{tmp_path / 'none'}': No such file or directory",
        ),
        (
            ["--ssl-cert-file", str(cert), "--ssl-key-file", str(other)],
            1,
            f"--ssl-key-file: '{other}' is not the key of the certificate '{cert}'",
        ),
        (
            ["--ssl-cert-file", str(key), "--ssl-key-file", str(key)],
            1,
            f"--ssl-cert-file: no PEM certificate in '{key}'",
        ),
        (["--path", str(tmp_path / "none")], 2, "--path: not a directory"),
        (["--ui-config", "[]"], 2, "--ui-config: expected a JSON object"),
    ):
        result, out, err = run_to_end(*args, "--port", "0")
        assert (result, out) == (code, "")
        assert err.startswith(f"strata-server: {message}") and err.count("\n") == 1, err
