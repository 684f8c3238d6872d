"""Listening sockets: what can be bound, and what is said when it can't."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strata_server.sockets import AddressError, bind_all


def test_port_zero_takes_a_free_port_which_the_url_tells() -> None:
    (listener,) = bind_all(["127.0.0.1"], 0, False)
    port = listener.socket.getsockname()[1]
    assert listener.url == f"http://127.0.0.1:{port}"
    with socket.create_connection(("127.0.0.1", port)):
        listener.close()


def test_a_port_in_use_is_refused_and_nothing_stays_open() -> None:
    (first,) = bind_all(["127.0.0.1"], 0, False)
    port = first.socket.getsockname()[1]
    with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
        bind_all(["127.0.0.2", "127.0.0.1"], port, False)
    first.close()
    for listener in bind_all(["127.0.0.2", "127.0.0.1"], port, False):
        listener.close()


def test_several_servers_may_share_a_port_when_told_so() -> None:
    (first,) = bind_all(["127.0.0.1"], 0, True)
    (second,) = bind_all(["127.0.0.1"], first.socket.getsockname()[1], True)
    first.close()
    second.close()


def test_several_addresses_need_a_port() -> None:
    with pytest.raises(AddressError, match="--port 0 does not go with several addresses"):
        bind_all(["127.0.0.1", "::1"], 0, False)


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(AddressError, match=r"unknown address 'nowhere.invalid'"):
        bind_all(["nowhere.invalid"], 0, False)


def test_a_unix_socket_replaces_that_of_a_server_that_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    (first,) = bind_all([path], 0, False)
    assert first.url == f"unix://{path}"
    with pytest.raises(AddressError, match="Address already in use"):
        bind_all([path], 0, False)
    first.socket.close()  # the file stays, as after a crash
    (second,) = bind_all([path], 0, False)
    second.close()
    assert not Path(path).exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("precious")
    with pytest.raises(AddressError, match="Address already in use"):
        bind_all([str(path)], 0, False)
    assert path.read_text() == "precious"
