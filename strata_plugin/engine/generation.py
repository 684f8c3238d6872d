"""One running choice inside the engine: its tokens, sampler, text and times."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from strata_plugin.checkpoints.keys import Key
from strata_plugin.checkpoints.misses import Found

from .messages import Queued, Submit, Timings
from .ports import SamplerPort, Tokens
from .text import Limits, TextAssembler


class Generation:
    """State of one request. Times are seconds on the engine's clock."""

    def __init__(
        self, submit: Submit, sampler: SamplerPort, now: float, n_ctx: int, root: Key
    ) -> None:
        self.submit = submit
        self.sampler = sampler
        self.root = root  # under which what it computes may be reused
        prompt = np.frombuffer(submit.prompt, "<i4")
        told = np.frombuffer(submit.resumed.tokens if submit.resumed else b"", "<i4")
        self.n_prompt = len(prompt)
        self.n_to_read = self.n_prompt + len(told)  # before the next token can be sampled
        room = self.n_to_read + max(16, min(submit.n_predict, 4096))
        self._tokens = np.empty(room, np.int32)
        self._tokens[: self.n_prompt] = prompt
        self._tokens[self.n_prompt : self.n_to_read] = told
        self.known = self.n_to_read
        self.text = TextAssembler(
            submit.stop,
            Limits(
                n_predict=submit.n_predict,
                n_ctx=n_ctx,
                n_indent=submit.n_indent,
                t_max_predict_ms=submit.t_max_predict_ms,
            ),
        )
        self.seq_id = -1
        self.slot = -1
        self.n_cached = 0
        self.found: Found | None = None  # what was stored of its prompt, until it is started
        self.n_generated = 0
        self.failures = 0  # steps that failed with this request in them, since the last good one
        self.reported = 0  # prompt tokens in the last Progress
        self.queued_at = now
        self.started_at = 0.0
        self.prompt_done_at = 0.0
        self.last_token_at = 0.0
        self.told: Queued | None = None  # the outlook that its client knows
        self.predicted_ms = -1.0  # from arrival to the first token, as predicted on arrival
        for number, token in enumerate(told.tolist(), 1):  # its client has this text
            self.n_generated = number
            self.text.push(
                sampler.piece(token),
                is_eog=False,
                n_generated=number,
                n_computed=self.n_prompt + number - 1,
                gen_ms=0.0,
            )

    @property
    def request_id(self) -> int:
        """The HTTP process's number for this choice."""
        return self.submit.request_id

    @property
    def reuse_limit(self) -> int:
        """Most tokens that may come from a cache: the last one always yields the logits."""
        return self.n_to_read - 1 if self.submit.cache_prompt else 0

    @property
    def tokens(self) -> Tokens:
        """Prompt and sampled tokens; a view, valid until the next `append`."""
        return self._tokens[: self.known]

    def append(self, token: int) -> None:
        """A sampled token is known now."""
        if self.known == len(self._tokens):
            self._tokens = np.concatenate(
                (self._tokens, np.empty(max(64, self.known // 2), np.int32))
            )
        self._tokens[self.known] = token
        self.known += 1

    def timings(self, compute_ms: float) -> Timings:
        """As they are now; `compute_ms` is this request's share of the steps that read it."""
        reading = self.prompt_done_at - self.started_at if self.prompt_done_at else 0.0
        writing = self.last_token_at - self.prompt_done_at if self.last_token_at else 0.0
        return Timings(
            prompt_n=self.n_prompt - self.n_cached,
            cache_n=self.n_cached,
            prompt_ms=reading * 1e3,
            predicted_n=self.n_generated,
            predicted_ms=writing * 1e3,
            queue_ms=max(0.0, self.started_at - self.queued_at) * 1e3,
            compute_ms=compute_ms,
        )

    def slot_info(self, computed: int) -> dict[str, Any]:
        """What llama-server's /slots says about a slot that holds this request."""
        n_predict = self.submit.n_predict
        return {
            "id_task": self.request_id,
            "n_prompt_tokens": computed,
            "n_prompt_tokens_processed": max(0, min(computed, self.n_prompt) - self.n_cached),
            "n_prompt_tokens_cache": self.n_cached,
            "params": json.loads(self.submit.settings),
            "next_token": [
                {
                    "has_next_token": self.text.stop == 0,
                    "has_new_line": self.text.has_new_line,
                    "n_remain": n_predict - self.n_generated if n_predict >= 0 else -1,
                    "n_decoded": self.n_generated,
                }
            ],
        }
