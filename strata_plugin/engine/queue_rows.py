"""One row of GET /queue: a request as anyone may see it, whichever kind of engine serves it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .messages import Embed, Submit


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """Times are milliseconds; what is not known is None. Field for field what clients get."""

    id: str
    dialect: str
    client: str
    key: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    stage: str
    position: int
    waited_ms: float
    predicted_ttft_ms: float | None
    predicted_ttft_low_ms: float | None
    predicted_ttft_high_ms: float | None
    tokens_per_s: float

    def shown(self) -> dict[str, Any]:
        """For JSON: fractions in thousandths."""
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def asked_by(request: Submit | Embed) -> dict[str, str]:
    """The fields of a row that come with the request."""
    return {
        "id": request.name or str(request.request_id),
        "dialect": request.dialect,
        "client": request.client,
        "key": request.tenant,
    }
