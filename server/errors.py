"""Errors in llama-server's form: `{"error":{"code","message","type"}}` with the HTTP status equal
to `code`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import orjson

JSON_TYPE = "application/json; charset=utf-8"

CODES = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}

OPENAI = {  # the code by which OpenAI's clients know an error of a type
    "exceed_context_size_error": "context_length_exceeded",
}
ANTHROPIC = {  # what Anthropic's API calls the error of a status
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorForm(Enum):
    """How an API shows an error."""

    LLAMA = "llama-server"
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


def form_of(path: str) -> ErrorForm:
    """The form that clients of a route expect, by the end of its path."""
    if path.endswith(("/messages", "/messages/count_tokens")):
        return ErrorForm.ANTHROPIC
    if path.endswith(("/responses", "/responses/input_tokens")):
        return ErrorForm.RESPONSES
    if "/v1/" in path or "/chat/" in path:
        return ErrorForm.OPENAI
    return ErrorForm.LLAMA


class ApiError(Exception):
    """An error that a client is told about. `extra` holds further fields of the error object;
    `retry_after` is in seconds, 0: not said; `anthropic_hint` is the words by which Anthropic's
    clients know it.
    """

    retry_after = 0
    anthropic_hint = ""

    def __init__(self, message: str, error_type: str = "invalid_request_error", **extra: Any):
        super().__init__(message)
        self.message = message
        self.error_type = error_type
        self.code = CODES.get(error_type, 500)
        self.extra = extra

    def as_object(self, form: ErrorForm = ErrorForm.LLAMA) -> dict[str, Any]:
        """The error object."""
        shown = {"code": self.code, "message": self.message, "type": self.error_type, **self.extra}
        if form in (ErrorForm.OPENAI, ErrorForm.RESPONSES) and self.error_type in OPENAI:
            shown["code"] = OPENAI[self.error_type]
            shown["param"] = None
        elif form is ErrorForm.ANTHROPIC:
            shown["message"] = self.anthropic_hint + self.message
            shown["type"] = ANTHROPIC.get(self.code, "api_error")
        return shown

    def headers(self) -> dict[str, str]:
        """Headers of the reply, besides those that every reply has."""
        return {"retry-after": str(self.retry_after)} if self.retry_after else {}

    def body(self, form: ErrorForm = ErrorForm.LLAMA) -> bytes:
        """The reply's body."""
        shown = {"error": self.as_object(form)}
        return orjson.dumps({"type": "error", **shown} if form is ErrorForm.ANTHROPIC else shown)

    def event(self, form: ErrorForm = ErrorForm.LLAMA) -> bytes:
        """The error as the last event of a stream whose headers have gone out already."""
        named = b"event: error\n" if form is ErrorForm.ANTHROPIC else b""
        return named + b"data: " + self.body(form) + b"\n\n"


def context_exceeded(n_prompt_tokens: int, n_ctx: int) -> ApiError:
    """A prompt that leaves no room for an answer.

    llama-server's sentence comes first; the second half is the wording by which OpenAI clients
    recognise the case.
    """
    return _too_long(
        f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), "
        f"try increasing it. This model's maximum context length is {n_ctx} tokens.",
        n_prompt_tokens,
        n_ctx,
    )


def prompt_limit_exceeded(n_prompt_tokens: int, limit: int) -> ApiError:
    """A prompt longer than `--max-prompt-tokens`."""
    return _too_long(
        f"request ({n_prompt_tokens} tokens) exceeds the prompt limit of this server "
        f"({limit} tokens, --max-prompt-tokens). "
        f"This server's maximum context length is {limit} tokens.",
        n_prompt_tokens,
        limit,
    )


def _too_long(message: str, n_prompt_tokens: int, limit: int) -> ApiError:
    error = ApiError(
        message, "exceed_context_size_error", n_prompt_tokens=n_prompt_tokens, n_ctx=limit
    )
    error.anthropic_hint = f"prompt is too long: {n_prompt_tokens} tokens > {limit} maximum. "
    return error


NOT_FOUND = ApiError("File Not Found", "not_found_error")
LOADING = ApiError("Loading model", "unavailable_error")
SHUTTING_DOWN = ApiError("The server is shutting down", "unavailable_error")
INVALID_KEY = ApiError("Invalid API Key", "authentication_error")
