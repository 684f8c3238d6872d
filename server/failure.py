"""How failures become replies."""

from __future__ import annotations

import math

from starlette.responses import Response

from strata_plugin.engine.messages import Failed

from .errors import CODES, JSON_TYPE, ApiError, ErrorForm

QUEUE_FULL = "rate_limit_error"


def error_response(error: ApiError, form: ErrorForm = ErrorForm.LLAMA) -> Response:
    """`error` as a plain HTTP reply."""
    return Response(error.body(form), error.code, error.headers(), media_type=JSON_TYPE)


def failed(event: Failed) -> ApiError:
    """A request's failure inside the engine, as its client is told."""
    full = event.code == CODES[QUEUE_FULL]
    error = ApiError(event.message, QUEUE_FULL if full else event.error_type)
    error.code = event.code
    if full:
        wait = event.retry_after_s
        error.retry_after = max(1, math.ceil(wait)) if math.isfinite(wait) else 1
    return error
