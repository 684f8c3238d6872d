"""One choice of one request: turns the engine's events into the bytes of its reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from strata_plugin.engine.messages import (
    Done,
    Moved,
    Progress,
    Queued,
    Started,
    StopReason,
    Timings,
    Token,
)

from .ports import BEGIN, PROGRESS, TOKENS, Event, ReplyPort
from .stages import WRITING, Stages

TIMINGS = {  # what we add to llama-server's `timings`
    "queue_ms": "milliseconds before the prompt was begun to be read",
    "compute_ms": "its share of the steps that read its prompt, in milliseconds",
    "effective_tokens_per_s": "prompt tokens, those found in a cache included, per second of "
    "waiting and reading",
}


@dataclass(frozen=True)
class Wanted:
    """What the request asked to see, read once from `strata_prepared_info`."""

    stream: bool
    tokens: bool  # return_tokens
    timings: bool  # timings_per_token
    probs: bool
    chat: bool  # the dialect parses the text, so each chunk reads the whole text again

    @property
    def mergeable(self) -> bool:
        """Whether several tokens may share one chunk without the client losing anything."""
        return self.chat and not (self.timings or self.probs)


def probs_as_sent(probs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The final reply's array of probabilities; with each goes the text that went out with it."""
    parts = [b'{"sent":' + orjson.dumps(list(sent)) + b"," + token[1:] for token, sent in probs]
    return b"[" + b",".join(parts) + b"]"


def timing_extras(timings: Timings) -> bytes:
    """The fields of `TIMINGS` as a JSON object."""
    waited_ms = timings.queue_ms + timings.prompt_ms
    n_prompt = timings.prompt_n + timings.cache_n
    speed = n_prompt * 1e3 / waited_ms if waited_ms > 0 else 0.0
    return orjson.dumps(
        {
            "queue_ms": round(timings.queue_ms, 3),
            "compute_ms": round(timings.compute_ms, 3),
            "effective_tokens_per_s": round(speed, 3),
        }
    )


class Choice:
    """Collects or forwards what one `RequestStream` brings.

    `count_tokens` tells how many tokens a text has; llama-server drops as many from the end of the
    returned probabilities when a stop string ended the text.
    """

    def __init__(
        self,
        reply: ReplyPort,
        n_prompt: int,
        wanted: Wanted,
        count_tokens: Callable[[str], int],
        stages: Stages,
    ):
        self.reply = reply
        self.n_prompt = n_prompt
        self.wanted = wanted
        self.stages = stages
        self.n_cached = 0
        self.n_decoded = 0
        self.done: Done | None = None
        self._count_tokens = count_tokens
        self._text: list[bytes] = []
        self._tokens: list[int] = []
        self._probs: list[tuple[bytes, bytes]] = []  # JSON, text that went out with the token
        self._unsent: list[int] = []  # tokens of a UTF-8 character that is not complete yet
        self._first = True
        self.calls = 0  # chunks written, for pacing

    # ---- streaming -------------------------------------------------------------------------------

    def pieces(self, events: Sequence[Event], merge: bool = False) -> bytes:
        """Bytes of the event stream for `events` (no `Failed` among them), in order.

        With `merge`, neighbouring tokens share a chunk; the caller asks for it only where
        `wanted.mergeable`.
        """
        out: list[bytes] = []
        run: list[Token] = []
        for event in events:
            if isinstance(event, Token):
                if self.stages.stage != WRITING:
                    self.stages.note(event)
                if run and not (merge and not self._first):
                    out.append(self._chunk(run))
                    run = []
                self.n_decoded = event.n_decoded
                if event.visible:
                    run.append(event)
                else:
                    self._unsent.append(event.token)
                continue
            comment = self.stages.note(event)
            if comment:
                out.append(comment)
            if isinstance(event, (Queued, Moved)):
                continue
            if run:
                out.append(self._chunk(run, event if isinstance(event, Done) else None))
                run = []
            if isinstance(event, Started):
                self.n_cached = event.n_cached
                begin = self.reply.chunk(
                    sse=True, kind=BEGIN, n_prompt=self.n_prompt, n_cached=self.n_cached
                )
                out.append(begin)
            elif isinstance(event, Progress):
                out.append(self._progress(event))
            elif isinstance(event, Done):
                out.append(self._end(event))
        if run:
            out.append(self._chunk(run))
        return b"".join(out)

    def _chunk(self, run: Sequence[Token], end: Done | None = None) -> bytes:
        last = run[-1]
        timings = last.timings if self.wanted.timings else None
        if end is not None and end.stop == StopReason.WORD:
            timings = end.timings  # llama-server knows by now that the answer has ended
        tokens = [*self._unsent, *(t.token for t in run)]
        self._unsent = []
        # llama-server's chat dialect opens the message when n_decoded is 1, and sends nothing for a
        # token that
        # ends inside a UTF-8 character: so the first chunk that is sent counts as the first token
        n_decoded = 1 if self._first and self.wanted.chat else last.n_decoded
        self._first = False
        self.calls += 1
        return self.reply.chunk(
            sse=True,
            kind=TOKENS,
            text=last.text if len(run) == 1 else b"".join(t.text for t in run),
            tokens=tokens,
            n_decoded=n_decoded,
            n_prompt=self.n_prompt,
            n_cached=self.n_cached,
            stats=timings,
            probs=last.probs,
            extra_timings=timing_extras(timings) if timings else None,
        )

    def _progress(self, event: Progress) -> bytes:
        self.n_cached = event.n_cached
        return self.reply.chunk(
            sse=True,
            kind=PROGRESS,
            n_prompt=self.n_prompt,
            n_cached=event.n_cached,
            progress_processed=event.processed,
            progress_ms=event.time_ms,
        )

    # ---- whole replies ---------------------------------------------------------------------------

    def collect(self, event: Event) -> bool:
        """Keep what `event` (no `Failed`) brings; True when the choice has ended."""
        if not isinstance(event, Token) or self.stages.stage != WRITING:
            self.stages.note(event)
        if isinstance(event, Token):
            self.n_decoded = event.n_decoded
            self._text.append(event.text)
            if self.wanted.tokens:
                self._tokens.append(event.token)
            if event.probs is not None and event.visible:
                self._probs.append((event.probs, event.text))
        elif isinstance(event, Started):
            self.n_cached = event.n_cached
        elif isinstance(event, Done):
            self.done = event
            return True
        return False

    def value(self) -> bytes:
        """The JSON value of the ended choice."""
        if self.done is None:
            raise RuntimeError("the choice has not ended")
        return self._end(self.done)

    def _end(self, done: Done) -> bytes:
        self.done = done
        text = done.text
        if not self.wanted.stream:
            whole = b"".join(self._text)
            text = (whole[: len(whole) - done.cut] if done.cut else whole) + done.text
        timings = done.timings
        return self.reply.final(
            sse=self.wanted.stream,
            text=text,
            tokens=self._unsent if self.wanted.stream else self._tokens,
            id_slot=done.id_slot,
            stop=int(done.stop),
            stopping_word=done.stopping_word,
            truncated=done.truncated,
            has_new_line=done.has_new_line,
            n_decoded=timings.predicted_n,
            n_prompt=self.n_prompt,
            n_cached=timings.cache_n,
            n_tokens_cached=done.n_tokens_cached,
            stats=timings,
            probs=self._final_probs(done),
            extra_timings=timing_extras(timings),
        )

    def _final_probs(self, done: Done) -> bytes | None:
        if self.wanted.stream or not self._probs:
            return None
        probs = self._probs
        if done.stop == StopReason.WORD:
            hidden = min(len(probs), self._count_tokens(done.stopping_word))
            probs = probs[: len(probs) - hidden]
        return probs_as_sent(probs)
