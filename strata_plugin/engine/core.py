"""The step loop's body: admit, plan, compute, sample, tell. One thread, no I/O; time is a callable.

Every message out is a value appended to `events`; the caller sends a step's as one frame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from strata_plugin.checkpoints.resident import AllSequencesBusy
from strata_plugin.observe.metrics import EngineMetrics
from strata_plugin.scheduling.plan import BatchClass, RowPiece, StepPlan
from strata_plugin.scheduling.request import Stage
from strata_plugin.scheduling.scheduler import Scheduler

from .generation import Generation
from .messages import (
    Done,
    Failed,
    Frozen,
    Metrics,
    Progress,
    Slots,
    Started,
    StopReason,
    Submit,
    Token,
)
from .ports import ContextPort, SamplerPort
from .recovery import Recovery
from .sequences import Sequences

log = logging.getLogger(__name__)


class EngineCore:
    """Requests of one context from submission to their last event."""

    def __init__(
        self,
        context: ContextPort,
        scheduler: Scheduler,
        sequences: Sequences,
        *,
        clock: Callable[[], float],
        n_ctx_slot: int,
        eog_tokens: frozenset[int],
        debug: bool = False,
    ) -> None:
        self.events: list[Frozen] = []
        self.metrics = EngineMetrics()
        self._context = context
        self._scheduler = scheduler
        self._sequences = sequences
        self._clock = clock
        self._n_ctx_slot = n_ctx_slot
        self._n_batch = scheduler.limits.n_batch
        self._eog = eog_tokens
        self._debug = debug
        self._batch = context.new_batch()
        self._generations: dict[int, Generation] = {}
        self._last_in_slot: dict[int, dict[str, Any]] = {}
        self._recovery = Recovery(scheduler, sequences, self._generations, self._fail)

    # -- messages in -----------------------------------------------------------------------------

    def submit(self, submit: Submit, sampler: SamplerPort) -> None:
        """Queue a request. What can't be served is answered with `Failed` at once."""
        now = self._clock()
        generation = Generation(submit, sampler, now, self._n_ctx_slot)
        if not 0 < generation.n_prompt < self._n_ctx_slot:
            message = (
                f"request of {generation.n_prompt} prompt tokens does not fit into a context of"
                f" {self._n_ctx_slot} tokens"
            )
            self.events.append(
                Failed(submit.request_id, 400, "exceed_context_size_error", message)
            )
            return
        self._scheduler.submit(
            submit.request_id,
            n_prompt=generation.n_prompt,
            arrival=now,
            batch_class=BatchClass(lora=submit.lora),
            stop_positions=submit.stop_positions,
            id_slot=submit.id_slot,
            fork_of=submit.fork_of,
        )
        self._generations[submit.request_id] = generation

    def cancel(self, request_id: int) -> None:
        """Forget a request; what it computed stays as a prefix. Unknown ids are over already."""
        generation = self._generations.get(request_id)
        if generation is not None:
            self._close(generation)

    def slots(self, query_id: int) -> None:
        """Answer `GetSlots`."""
        infos = []
        for slot in range(self._scheduler.limits.n_rows):
            info: dict[str, Any] = {
                "id": slot,
                "n_ctx": self._n_ctx_slot,
                "speculative": False,
                "is_processing": False,
            }
            holder = self._scheduler.holder(slot)
            if holder is None:
                info.update(self._last_in_slot.get(slot, {}))
            else:
                info["is_processing"] = True
                computed = self._scheduler.request(holder).computed
                info.update(self._generations[holder].slot_info(computed))
            infos.append(info)
        self.events.append(Slots(query_id, tuple(infos)))

    def get_metrics(self, query_id: int, reset_window: bool) -> None:
        """Answer `GetMetrics`."""
        queued = self._scheduler.counts()[Stage.QUEUED]
        values = self.metrics.values(
            processing=len(self._generations) - queued,
            deferred=queued,
            reset_window=reset_window,
        )
        self.events.append(Metrics(query_id, values))

    # -- one step --------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing to do until a message comes."""
        return not self._generations

    def step(self) -> bool:
        """Compute one step; False when nothing could be computed."""
        self._admit()
        plan = self._scheduler.plan()
        if plan is None:
            if not self._scheduler.parked():
                return False
            self._recovery.unpark_one(force=True)
            return True
        plan = self._recovery.isolate(plan)
        started = self._clock()
        code = self._compute(plan)
        if code != 0:
            self._recovery.after_failure(plan, code)
            return True
        rows = [p for p in plan.pieces if isinstance(p, RowPiece)]
        if not rows:
            # without outputs llama_decode returns before the GPU is done; the budget needs the time
            self._context.synchronize()
        self._scheduler.complete(plan, (self._clock() - started) * 1e3)
        self._after_compute(plan)
        if rows:
            self._sample(rows)
        self._recovery.after_success(plan)
        if self._debug:
            self.check_integrity()
        return True

    def _admit(self) -> None:
        if self._scheduler.parked():
            self._recovery.unpark_one(force=False)
            if self._scheduler.parked():
                return  # newcomers would take the cells that they wait for
        for request_id, slot in self._scheduler.admissible():
            generation = self._generations[request_id]
            limit = generation.n_prompt - 1 if generation.submit.cache_prompt else 0
            try:
                seq_id, reuse = self._sequences.start(generation.tokens, reuse_limit=limit)
            except AllSequencesBusy:
                return  # there are more sequences than rows, so one comes free
            generation.seq_id, generation.slot, generation.n_cached = seq_id, slot, reuse
            generation.started_at = self._clock()
            self._scheduler.admit(request_id, slot, reuse)
            self._sequences.retire_idle()
            self.events.append(Started(request_id, slot, reuse))
            if generation.submit.return_progress:
                self._progress(generation, reuse)

    def _compute(self, plan: StepPlan) -> int:
        batch = self._batch
        batch.clear()
        self._row_of: dict[int, int] = {}
        for piece in plan.pieces:
            generation = self._generations[piece.request_id]
            tokens = generation.tokens[piece.start : piece.start + piece.count]
            is_row = isinstance(piece, RowPiece)
            row = batch.add(generation.seq_id, tokens, piece.start, output=is_row)
            self._row_of[piece.request_id] = row
        return self._context.decode(batch)

    def _after_compute(self, plan: StepPlan) -> None:
        longest = 0
        for piece in plan.pieces:
            generation = self._generations[piece.request_id]
            end = piece.start + piece.count
            longest = max(longest, end)
            self._sequences.computed(generation.seq_id, generation.tokens[piece.start : end])
            if generation.submit.return_progress and piece.start < generation.n_prompt:
                self._progress_to(generation, min(end, generation.n_prompt))
        self.metrics.step_done(len(plan.pieces), longest)

    def _progress_to(self, generation: Generation, processed: int) -> None:
        """Report each `-b` border passed, counted from where the reading began, and the end."""
        border = generation.reported + self._n_batch
        while border < processed:
            self._progress(generation, border)
            border += self._n_batch
        if processed in (border, generation.n_prompt) and processed > generation.reported:
            self._progress(generation, processed)

    def _progress(self, generation: Generation, processed: int) -> None:
        generation.reported = processed
        elapsed_ms = int((self._clock() - generation.started_at) * 1e3)
        self.events.append(
            Progress(generation.request_id, processed, generation.n_cached, elapsed_ms)
        )

    # -- sampling --------------------------------------------------------------------------------

    def _sample(self, rows: list[RowPiece]) -> None:
        generations = [self._generations[r.request_id] for r in rows]
        indices = [self._row_of[r.request_id] for r in rows]
        now = self._clock()
        for g in generations:
            if not g.prompt_done_at:
                g.prompt_done_at = now
                self.metrics.prompt_done(g.n_prompt - g.n_cached, g.n_cached, now - g.started_at)
        tokens = self._context.sample([g.sampler for g in generations], indices)
        now = self._clock()
        for generation, row, token in zip(generations, indices, tokens, strict=True):
            if token < 0:
                self._fail(generation, 500, "server_error", generation.sampler.error)
            else:
                self._sampled(generation, row, token, now)

    def _sampled(self, g: Generation, row: int, token: int, now: float) -> None:
        g.n_generated += 1
        g.last_token_at = now
        n_computed = g.known
        step = g.text.push(
            g.sampler.piece(token),
            is_eog=token in self._eog,
            n_generated=g.n_generated,
            n_computed=n_computed,
            gen_ms=(now - g.prompt_done_at) * 1e3,
        )
        wants_probs = g.submit.n_probs > 0
        wants_timings = g.submit.timings_per_token or g.text.stop is not StopReason.NONE
        self.events.append(
            Token(
                request_id=g.request_id,
                token=token,
                text=step.text,
                n_decoded=g.n_generated,
                visible=step.visible,
                timings=g.timings() if wants_timings else None,
                probs=g.sampler.probs(self._context, row, token) if wants_probs else None,
                sampler_state=g.sampler.save(),
            )
        )
        if g.text.stop is StopReason.NONE:
            g.append(token)
            self._scheduler.sampled(g.request_id)
        else:
            self._done(g, n_computed)

    def _done(self, g: Generation, n_computed: int) -> None:
        self.metrics.generation_done(g.n_generated, g.last_token_at - g.prompt_done_at)
        self.events.append(
            Done(
                request_id=g.request_id,
                id_slot=g.slot,
                stop=g.text.stop,
                stopping_word=g.text.stopping_word,
                truncated=g.text.truncated,
                has_new_line=g.text.has_new_line,
                n_tokens_cached=n_computed,
                text=g.text.flush(),
                cut=g.text.cut,
                timings=g.timings(),
            )
        )
        self._close(g)

    # -- the end of a request --------------------------------------------------------------------

    def _fail(self, g: Generation, code: int, error_type: str, message: str) -> None:
        log.error("request %d failed: %s", g.request_id, message)
        self.events.append(Failed(g.request_id, code, error_type, message))
        self._close(g)

    def _close(self, g: Generation) -> None:
        request = self._scheduler.request(g.request_id)
        if request.stage is Stage.PARKED:
            self._sequences.drop_parked(g.request_id)
        elif request.slot is not None:
            self._last_in_slot[request.slot] = g.slot_info(request.computed)
            self._sequences.release(g.seq_id)
        self._scheduler.finish(g.request_id)
        self._recovery.forget(g.request_id)
        del self._generations[g.request_id]

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        self._scheduler.check_integrity()
        self._sequences.check_integrity()
        for request_id in self._generations:
            assert request_id in self._scheduler, f"request {request_id} is not scheduled"
