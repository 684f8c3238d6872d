from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chat.scripted import scripted_model
from tests.http.calling import calling_server
from tests.http.server_process import ServerProcess, need_native_library

# clients that would otherwise ask their makers for news when they are imported
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["DO_NOT_TRACK"] = "1"


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """One server with the default model for all tests that only send requests."""
    need_native_library()
    with ServerProcess("-c", "2048", "--metrics", "--seed", "1") as process:
        yield process


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ServerProcess]:
    """One server with the model that says what it is told to."""
    need_native_library()
    # one thread: two that spin would wait for each other where the machine is busy
    with ServerProcess("-m", str(scripted_model()), "-c", "4096", "-t", "1") as process:
        yield process


@pytest.fixture
def scripted_client(scripted_server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of that server."""
    with scripted_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server whose model calls a tool and answers to its result."""
    need_native_library()
    with calling_server(tmp_path_factory.mktemp("templates")) as process:
        yield process


@pytest.fixture
def only_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test where something asks for another machine, whatever becomes of it."""
    asked: list[Any] = []
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1", "localhost", "::1"):
            asked.append(host)
            raise socket.gaierror(f"{host} is not this machine")
        return resolve(host, *args, **kwargs)

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
            asked.append(address)
            raise OSError(f"{address} is not this machine")
        connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket.socket, "connect", connect_here)
    yield
    assert asked == []
