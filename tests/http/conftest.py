from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.server_process import ServerProcess, need_native_library


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """One server with the default model for all tests that only send requests."""
    need_native_library()
    with ServerProcess("-c", "2048", "--metrics", "--seed", "1") as process:
        yield process
