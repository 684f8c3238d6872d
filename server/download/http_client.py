"""Asking for models over HTTP: one client, short questions with a deadline, errors in a line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TypeVar

import httpx2

from ..information import version

CONNECT_S = 10.0
SILENCE_S = 30.0  # a server that sends nothing for so long is taken for gone

T = TypeVar("T")


class DownloadError(Exception):
    """A model cannot be had; one line for a person."""


class Unreachable(DownloadError):
    """No answer: no network, wrong host, too slow."""


class Refused(DownloadError):
    """An answer that is no success; `code` is what a hub adds in X-Error-Code."""

    def __init__(self, url: str, answer: httpx2.Response):
        super().__init__(f"{host(url)} answers {answer.status_code} for {file_name(url)}")
        self.status = answer.status_code
        self.code = answer.headers.get("X-Error-Code", "")


def client() -> httpx2.Client:
    """A client that follows redirects and keeps what authorizes it from other hosts."""
    return httpx2.Client(
        follow_redirects=True,
        timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S),
        headers={"User-Agent": f"strata/{version()}", "Accept-Encoding": "identity"},
    )


def ask(url: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> httpx2.Response:
    """The answer, whose status is 2xx. Raises `Refused`, `Unreachable` or `DownloadError`."""
    try:
        with client() as web:
            answer: httpx2.Response = web.request(method, url, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise failure(url, error) from None
    if not answer.is_success:
        raise Refused(url, answer)
    return answer


def in_time(seconds: float, where: str, question: Callable[[], T]) -> T:
    """What `question`, put to `where`, returns or raises; `Unreachable` after `seconds`.

    It is asked in a thread of its own, since looking up a name has no limit of its own.
    """
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put((question(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = outcome.get(timeout=seconds)
    except Empty:
        raise Unreachable(f"no answer from {where} within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def failure(url: str, error: Exception) -> DownloadError:
    """`error` of the client as one of ours."""
    if isinstance(error, httpx2.TransportError) and host(url):
        return Unreachable(f"cannot reach {host(url)}: {reason(error)}")
    return DownloadError(f"cannot download {without_secrets(url)}: {reason(error)}")


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    text = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(error).split()))
    return text or type(error).__name__


def host(url: str) -> str:
    """Host and port of `url`, without a name and a password; "" where there is none."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return ""
    return parsed.host + (f":{parsed.port}" if parsed.port else "")


def file_name(url: str) -> str:
    """The last part of the path."""
    return re.split(r"[?#]", url, maxsplit=1)[0].rpartition("/")[2]


def without_secrets(url: str) -> str:
    """`url` without what may authorize: name, password and query."""
    return re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0])
