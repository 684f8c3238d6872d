"""Errors in llama-server's form: `{"error":{"code","message","type"}}` with the HTTP status equal
to `code`.
"""

from __future__ import annotations

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


class ApiError(Exception):
    """An error that a client is told about. `extra` holds further fields of the error object;
    `retry_after` is in seconds, 0: not said.
    """

    retry_after = 0

    def __init__(self, message: str, error_type: str = "invalid_request_error", **extra: Any):
        super().__init__(message)
        self.message = message
        self.error_type = error_type
        self.code = CODES.get(error_type, 500)
        self.extra = extra

    def as_object(self) -> dict[str, Any]:
        """The error object."""
        return {
            "code": self.code,
            "message": self.message,
            "type": self.error_type,
            **self.extra,
        }

    def headers(self) -> dict[str, str]:
        """Headers of the reply, besides those that every reply has."""
        return {"retry-after": str(self.retry_after)} if self.retry_after else {}

    def body(self) -> bytes:
        """The reply's body."""
        return orjson.dumps({"error": self.as_object()})

    def event(self) -> bytes:
        """The error as an event of a stream whose headers have gone out already."""
        return b"data: " + self.body() + b"\n\n"


def context_exceeded(n_prompt_tokens: int, n_ctx: int) -> ApiError:
    """A prompt that leaves no room for an answer.

    llama-server's sentence comes first; the second half is the wording by which OpenAI clients
    recognise the case.
    """
    return ApiError(
        f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), "
        f"try increasing it. This model's maximum context length is {n_ctx} tokens.",
        "exceed_context_size_error",
        n_prompt_tokens=n_prompt_tokens,
        n_ctx=n_ctx,
    )


def prompt_limit_exceeded(n_prompt_tokens: int, limit: int) -> ApiError:
    """A prompt longer than `--max-prompt-tokens`."""
    return ApiError(
        f"request ({n_prompt_tokens} tokens) exceeds the prompt limit of this server "
        f"({limit} tokens, --max-prompt-tokens). "
        f"This server's maximum context length is {limit} tokens.",
        "exceed_context_size_error",
        n_prompt_tokens=n_prompt_tokens,
        n_ctx=limit,
    )


NOT_FOUND = ApiError("File Not Found", "not_found_error")
LOADING = ApiError("Loading model", "unavailable_error")
INVALID_KEY = ApiError("Invalid API Key", "authentication_error")
