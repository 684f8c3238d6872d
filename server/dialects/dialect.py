"""What a dialect of the API is to the code that serves requests: how it is read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ApiError, ErrorForm
from ..ports import Kind, ReplyPort

Words = Callable[[str], int]  # counts the tokens of a text


class Dialect(Protocol):
    """One way of asking for text and of answering."""

    @property
    def name(self) -> str:
        """As GET /queue and the log show it."""

    @property
    def kind(self) -> Kind:
        """What its requests are to the native library after `read`."""

    @property
    def errors(self) -> ErrorForm:
        """How its errors look."""

    @property
    def done(self) -> bytes:
        """What ends its event streams."""

    @property
    def ping(self) -> bytes:
        """What its event streams carry when there is nothing to say."""

    def read(self, body: bytes) -> tuple[bytes, Any]:
        """The native body, and what `reply` needs of the request; `ApiError` when it is wrong."""

    def reply(self, inner: ReplyPort, request: Any, count_tokens: Words) -> ReplyPort:
        """The writer of a choice's results, on top of the native one."""

    def failure(self, error: ApiError, writer: ReplyPort) -> bytes:
        """What ends an event stream that fails; `writer` is that of its first choice."""


class NativeDialect:
    """A dialect that the native library reads and writes itself."""

    ping = b":\n\n"

    def __init__(self, name: str, kind: Kind, errors: ErrorForm, done: bytes = b""):
        self.name = name
        self.kind = kind
        self.errors = errors
        self.done = done

    def read(self, body: bytes) -> tuple[bytes, Any]:
        """Nothing to translate."""
        return body, None

    def reply(self, inner: ReplyPort, request: Any, count_tokens: Words) -> ReplyPort:
        """Nothing to translate."""
        return inner

    def failure(self, error: ApiError, writer: ReplyPort) -> bytes:
        """The event that ends a failed stream."""
        return error.event(self.errors)


DONE = b"data: [DONE]\n\n"
NATIVE = NativeDialect("native", Kind.COMPLETION, ErrorForm.LLAMA)
INFILL = NativeDialect("infill", Kind.INFILL, ErrorForm.LLAMA)
OPENAI_COMPLETION = NativeDialect(
    "openai-completion", Kind.OAI_COMPLETION, ErrorForm.OPENAI, DONE
)
OPENAI_CHAT = NativeDialect("openai-chat", Kind.OAI_CHAT, ErrorForm.OPENAI, DONE)
