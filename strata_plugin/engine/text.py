"""From sampled tokens to text that may be sent: UTF-8, stop strings, limits of a generation.

Follows llama-server's `process_token` (tools/server/server-context.cpp) so that chunks, stop
reasons and counters agree with it, with two differences in the client's favour: text in front of a
possible stop string is sent at once, and text held back for a stop string that never came is not
lost when a limit ends the generation.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import StopReason


def incomplete_tail(text: bytes | bytearray) -> int:
    """Number of bytes at the end of `text` that begin a UTF-8 character without finishing it."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:  # continuation: look further back
            continue
        need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if need > back else 0
    return 0


def partial_stop(text: bytes | bytearray, stop: bytes) -> int:
    """Length of the longest proper or whole prefix of `stop` that ends `text`, else 0."""
    for n in range(min(len(stop), len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


@dataclass(slots=True)
class Limits:
    """When a generation ends by itself. Token counts; -1: no limit."""

    n_predict: int = -1
    n_ctx: int = 0  # tokens that the sequence may reach
    n_indent: int = 0  # columns: end at a line indented less
    t_max_predict_ms: int = -1  # checked at line ends only


@dataclass(slots=True)
class Step:
    """What one token amounts to."""

    text: bytes  # may be sent now
    visible: bool  # False: nothing is due, a UTF-8 character is incomplete


class TextAssembler:
    """Text of one generation. Feed it each token's bytes; it says what to send and when to stop."""

    def __init__(self, stop: tuple[str, ...], limits: Limits) -> None:
        self._stop = tuple(s.encode("utf-8", "surrogateescape") for s in stop if s)
        self._limits = limits
        self._text = bytearray()
        self._sent = 0
        self._last_newline = 0
        self.cut = 0  # bytes to take back from what was sent (n_indent)
        self.stop = StopReason.NONE
        self.stopping_word = ""
        self.truncated = False
        self.has_new_line = False

    def push(
        self, piece: bytes, *, is_eog: bool, n_generated: int, n_computed: int, gen_ms: float
    ) -> Step:
        """Add a token.

        `n_generated` counts sampled tokens with this one, `n_computed` the sequence's tokens in
        the KV cache (without this one), `gen_ms` the time since the end of the prompt.
        Afterwards `self.stop` says whether the generation is over.
        """
        self._text += piece
        step = Step(b"", False)
        if not incomplete_tail(self._text):
            step = self._emit(is_eog)
        limits = self._limits
        if n_computed + 1 >= limits.n_ctx:
            self.truncated = True
            self.stop = StopReason.LIMIT
        if self.stop is StopReason.NONE and 0 <= limits.n_predict <= n_generated:
            self.stop = StopReason.LIMIT
        if self.has_new_line and limits.n_indent > 0:
            self._check_indent()
        if b"\n" in step.text:
            self.has_new_line = True
            if 0 < limits.t_max_predict_ms < gen_ms:
                self.stop = StopReason.LIMIT
        if is_eog:
            self.stop = StopReason.EOS
        return step

    def _emit(self, is_eog: bool) -> Step:
        tail = self._text[self._sent :]
        cut, word = len(tail), b""
        for candidate in self._stop:
            at = tail.find(candidate)
            if at != -1 and at < cut:
                cut, word = at, candidate
        if word:
            self.stop = StopReason.WORD
            self.stopping_word = word.decode("utf-8", "surrogateescape")
            del self._text[self._sent + cut :]
        elif self._stop and not is_eog:
            cut -= max(partial_stop(tail, candidate) for candidate in self._stop)
            cut -= incomplete_tail(tail[:cut])
        self._sent += cut
        return Step(bytes(tail[:cut]), True)

    def _check_indent(self) -> None:
        """End at a line indented by less than n_indent, without that line."""
        if self._last_newline > 0:
            at = self._last_newline
            while at < len(self._text) and self._text[at] in b" \t":
                at += 1
            if at < len(self._text) and at - self._last_newline < self._limits.n_indent:
                self.stop = StopReason.LIMIT
                self.cut = max(0, self._sent - at)
                self._sent = min(self._sent, at)
                del self._text[at:]
        newline = self._text.find(b"\n", self._last_newline)
        if newline != -1:
            self._last_newline = newline + 1

    def flush(self) -> bytes:
        """What is still held back, once the generation is over; an incomplete character is dropped.
        """
        tail = self._text[self._sent :]
        end = len(tail) - incomplete_tail(tail)
        self._sent = len(self._text)
        return bytes(tail[:end])

    @property
    def text(self) -> bytes:
        """All text so far, held back parts included."""
        return bytes(self._text)
