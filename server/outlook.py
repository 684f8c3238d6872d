"""What a client is told about its wait: headers of the reply, and comments in its stream."""

from __future__ import annotations

import math

from strata_plugin.engine.messages import Queued

# all headers that we add to a reply; pages of other origins may read them, too
HEADERS = {
    "X-Request-Id": "the request's own X-Request-Id where that is at most 128 printable ASCII "
    "characters, else a fresh one; the log names the request by it",
    "X-Queue-Position": "requests that waited before this one when it arrived; 0: it was next, or "
    "was taken at once",
    "X-Predicted-TTFT-Ms": "predicted milliseconds from the request's arrival to its first token; "
    "left out while nothing is known",
    "Retry-After": "with 429: seconds until a place in the queue should be free",
}


def queue_headers(queued: Queued | None) -> list[tuple[bytes, bytes]]:
    """Headers for where a request stood when it arrived; none when the engine has not said it."""
    if queued is None:
        return []
    found = [(b"x-queue-position", b"%d" % max(queued.position, 0))]
    if _known(queued.predicted_ttft_ms):
        found.append((b"x-predicted-ttft-ms", b"%d" % round(queued.predicted_ttft_ms)))
    return found


def queue_comment(queued: Queued) -> bytes:
    """A comment line of an event stream, which clients skip and people read."""
    return f": queue position {max(queued.position, 0)}{prediction(queued)}\n\n".encode()


def prediction(queued: Queued) -> str:
    """The predicted time to the first token in words, beginning with a comma; "" if unknown."""
    if not _known(queued.predicted_ttft_ms):
        return ""
    text = f", predicted first token in {queued.predicted_ttft_ms:.0f} ms"
    if _known(queued.low_ms) and _known(queued.high_ms):
        text += f" ({queued.low_ms:.0f}..{queued.high_ms:.0f})"
    return text


def _known(milliseconds: float) -> bool:
    return 0 <= milliseconds < math.inf
