"""The step loop's body: admit, plan, compute, sample, tell. One thread, no I/O; time is a callable.

Every message out is a value appended to `events`; the caller sends a step's as one frame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from strata_plugin.checkpoints.keys import Key, namespace
from strata_plugin.checkpoints.resident import AllSequencesBusy
from strata_plugin.observe.cache import cache_samples
from strata_plugin.observe.metrics import EngineMetrics
from strata_plugin.scheduling.plan import BatchClass, RowPiece, StepPlan
from strata_plugin.scheduling.request import Stage
from strata_plugin.scheduling.scheduler import Scheduler
from strata_plugin.scheduling.seating import fill

from .explanations import Explanations, Text
from .generation import Generation
from .messages import (
    ActOnSlot,
    Cache,
    Done,
    Explained,
    Failed,
    Frozen,
    Metrics,
    Moved,
    Progress,
    Queue,
    Slots,
    Started,
    StopReason,
    Submit,
    Timings,
    Token,
)
from .outlook import Outlook
from .ports import ContextPort, SamplerPort
from .recovery import Recovery
from .sequences import Sequences, root_of
from .slot_actions import Left, ModelKey, SlotActions

RENEWED_AT_ONCE = 8  # queued requests asked for what they will find when another ends
READ_AHEAD_MARGIN = 256  # cells kept free for each request's answer when prompts are read ahead

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
        text: Text = str,
        model_key: ModelKey = lambda folder: namespace({}),
        block_tokens: int = 256,
        debug: bool = False,
    ) -> None:
        """`text` shows tokens to people; `model_key` see `SlotActions`."""
        self._block_tokens = block_tokens
        self.events: list[Frozen] = []
        self.flush: Callable[[], None] = _keep  # sends `events` before the step's book-keeping
        self.beat: Callable[[float], None] = _unheard  # told how many ms a step should take
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
        self._restoring: dict[int, list[Generation]] = {}  # with their forks, by request id
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._behind = False  # states may have to be stored
        self._has_ended = False  # a request, since the last step
        self._renewed = -1  # id of the queued request last asked for what it will find
        self.wake: Callable[[], None] = _keep  # called by `post`, in any thread
        self._last_in_slot: dict[int, dict[str, Any]] = {}
        self._recovery = Recovery(scheduler, sequences, self._generations, self._fail)
        self._outlook = Outlook(scheduler, sequences, self._generations, self.metrics)
        self._explanations = Explanations(sequences, text)
        self._slot_actions = SlotActions(
            sequences, model_key, self.post, lambda message: self.events.append(message)
        )

    # -- messages in -----------------------------------------------------------------------------

    def submit(self, submit: Submit, sampler: SamplerPort) -> None:
        """Queue a request. What can't be served is answered with `Failed` at once."""
        now = self._clock()
        generation = Generation(submit, sampler, now, self._n_ctx_slot, self._root(submit))
        if not 0 < generation.n_prompt < self._n_ctx_slot:
            message = (
                f"request of {generation.n_prompt} prompt tokens does not fit into a context of"
                f" {self._n_ctx_slot} tokens"
            )
            self.events.append(
                Failed(submit.request_id, 400, "exceed_context_size_error", message)
            )
            return
        if submit.fork_of in self._restoring:
            self._restoring[submit.fork_of].append(generation)
            return
        max_queue = self._scheduler.config.max_queue
        if max_queue and self._scheduler.counts()[Stage.QUEUED] >= max_queue:
            message = f"the queue is full: {max_queue} requests are waiting"
            wait = self._outlook.next_place_s(now)
            self.events.append(Failed(submit.request_id, 429, "rate_limit_error", message, wait))
            return
        generation.found = self._explanations.look(generation)
        known = self._known_prefix(generation)
        if self._sequences.fetch(
            generation.tokens,
            known,
            generation.reuse_limit,
            generation.root,
            self.post,
            lambda: self._restored(submit.request_id),
        ):
            self._restoring[submit.request_id] = [generation]
            self.events.append(Moved(submit.request_id, "restoring"))
            return
        self._queue(generation, known)

    def _restored(self, request_id: int) -> None:
        """Its blocks are in RAM, as far as they could be had: on with it and its forks."""
        for generation in self._restoring.pop(request_id, ()):
            self._queue(generation, self._known_prefix(generation))

    def _known_prefix(self, g: Generation) -> int:
        return self._sequences.known_prefix(g.tokens, g.reuse_limit, g.root)

    def _queue(self, generation: Generation, known: int) -> None:
        submit = generation.submit
        self._scheduler.submit(
            submit.request_id,
            n_prompt=generation.n_to_read,
            arrival=generation.queued_at,
            batch_class=BatchClass(lora=submit.lora),
            stop_positions=self._stops(generation),
            id_slot=submit.id_slot,
            fork_of=submit.fork_of,
            tenant=submit.tenant,
            priority=submit.priority,
            itl_slo_ms=submit.itl_slo_ms,
            n_predict=submit.n_predict,
            expected=known,
        )
        self._generations[submit.request_id] = generation
        self._outlook.changed()

    def _stops(self, generation: Generation) -> tuple[int, ...]:
        """Positions that no step crosses."""
        stops = generation.submit.stop_positions
        own = self._sequences.checkpoints(generation.tokens, self._eog, generation.root)
        return tuple(sorted({*stops, *own})) if own else stops

    def _root(self, submit: Submit) -> Key:
        """Under which a request's states are kept: all that changes them, and whose they are."""
        return root_of(submit.salt, submit.lora)

    def cancel(self, request_id: int) -> None:
        """Forget a request; what it computed stays as a prefix. Unknown ids are over already."""
        generation = self._generations.get(request_id)
        if generation is not None:
            self._close(generation)
        for first, waiting in list(self._restoring.items()):
            waiting[:] = [g for g in waiting if g.request_id != request_id]
            if first == request_id or not waiting:
                del self._restoring[first]
                for other in waiting:
                    self._queue(other, self._known_prefix(other))

    def post(self, task: Callable[[], None]) -> None:
        """Have the step loop call `task` between two steps; any thread may do this."""
        self._tasks.put(task)
        self.wake()

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

    def queue(self, query_id: int) -> None:
        """Answer `GetQueue`."""
        restoring = [g for waiting in self._restoring.values() for g in waiting]
        self.events.append(Queue(query_id, self._outlook.view(self._clock(), restoring)))

    def cache(self, query_id: int, tenant: str) -> None:
        """Answer `GetCache`."""
        view = self._sequences.view() | self._explanations.view(tenant)
        self.events.append(Cache(query_id, view))

    def explain(self, query_id: int, tenant: str, name: str) -> None:
        """Answer `GetExplanation`."""
        self.events.append(Explained(query_id, self._explanations.of(tenant, name)))

    def act_on_slot(self, action: ActOnSlot) -> None:
        """Answer `ActOnSlot`."""
        self._slot_actions.act(action, busy=self._scheduler.holder(action.slot) is not None)

    def close(self) -> None:
        """Nothing will be asked any more."""
        self._slot_actions.close()

    def get_metrics(self, query_id: int, reset_window: bool) -> None:
        """Answer `GetMetrics`."""
        queued = self._scheduler.counts()[Stage.QUEUED]
        values = self.metrics.values(
            processing=len(self._generations) - queued,
            deferred=queued,
            feasible=self._scheduler.outlook()[2],
            reset_window=reset_window,
        )
        values |= cache_samples(self._sequences.view())
        self.events.append(Metrics(query_id, values))

    # -- one step --------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No request is there."""
        return not (self._generations or self._restoring)

    @property
    def at_rest(self) -> bool:
        """Nothing to do until a message or a task comes."""
        return not (self._generations or self._behind) and self._tasks.empty()

    def step(self) -> bool:
        """Compute one step; False when nothing could be computed."""
        while not self._tasks.empty():
            self._tasks.get()()
        if not self._generations:
            self._behind = self._sequences.write_behind(1, busy=False) > 0
            return False
        began = self._clock()
        n_events = len(self.events)
        self._admit()
        # its place is the first that a client hears, and before the step, not after it
        self.events[n_events:n_events] = self._outlook.news(began)
        self.flush()
        plan = self._scheduler.plan()
        if plan is None:
            if not self._scheduler.parked():
                return False
            self._recovery.unpark_one(force=True)
            return True
        plan = self._recovery.isolate(plan)
        read = sum(p.count for p in plan.pieces if p.count > 1)
        if read:  # rows alone never take long
            self.beat(self._scheduler.predict_ms(plan))
        code = self._compute(plan)
        if code != 0:
            self._recovery.after_failure(plan, code)
            self._outlook.changed()
            return True
        rows = [p for p in plan.pieces if isinstance(p, RowPiece)]
        if not rows:
            # without outputs llama_decode returns before the GPU is done; the pace needs the time
            self._context.synchronize()
        self._tell_progress(plan)
        tokens = self._sample(rows) if rows else []
        self.flush()  # the HTTP process works on the tokens while the books are kept here
        self._book(plan, (self._clock() - began) * 1e3)
        for generation, token in tokens:
            self._go_on(generation, token)
        self._recovery.after_success(plan)
        # blocks that fill are stored in steps that take long anyway, those of who has ended in any
        self._behind = True
        self._sequences.write_behind(1 + read // self._block_tokens, busy=read > 0)
        if self._debug:
            self.check_integrity()
        return True

    def _renew_expected(self) -> None:
        """Others may have read by now what requests in the queue begin with: look for some of them,
        in turn.
        """
        queued = sorted(self._scheduler.queued())
        later = [i for i in queued if i > self._renewed]
        for request_id in (later + queued)[:RENEWED_AT_ONCE]:
            known = self._known_prefix(self._generations[request_id])
            self._scheduler.expect(request_id, known)
            self._renewed = request_id

    def _admit(self) -> None:
        if self._has_ended:
            self._has_ended = False
            self._renew_expected()
        if self._scheduler.parked():
            self._recovery.unpark_one(force=False)
            if self._scheduler.parked():
                return  # newcomers would take the cells that they wait for
        fill(self._scheduler, start=self._start, seated=self._seated, fits=self._fits)
        self._scheduler.other_cells = self._sequences.idle_tokens

    def _start(self, request_id: int, slot: int | None) -> bool:
        generation = self._generations[request_id]
        try:
            found = self._sequences.start(
                generation.tokens, reuse_limit=generation.reuse_limit, root=generation.root
            )
        except AllSequencesBusy:
            return False  # there are more sequences than rows, so one comes free
        generation.seq_id, reuse = found
        generation.slot = -1 if slot is None else slot
        generation.n_cached = min(reuse, generation.n_prompt)
        generation.started_at = self._clock()
        self._scheduler.admit(request_id, slot, reuse)
        self._sequences.retire_idle(self._scheduler.cost.scanning_ms)
        self._outlook.changed()
        self.metrics.queued(generation.n_prompt, generation.started_at - generation.queued_at)
        self.events.append(Started(request_id, generation.slot, generation.n_cached))
        if generation.found is not None:
            restore = self._sequences.last_restore
            self._explanations.started(generation, generation.found, restore)
            generation.found = None
        if generation.submit.return_progress:
            self._progress(generation, reuse)
        return True

    def _seated(self, request_id: int, slot: int) -> None:
        for generation in self._generations.values():
            if generation.slot == slot:
                generation.slot = -1  # it reads on without a row
        self._generations[request_id].slot = slot

    def _fits(self, request_id: int) -> bool:
        """Whether a prompt can be read ahead without taking cells that others will need."""
        margin = READ_AHEAD_MARGIN * len(self._generations)
        return self._scheduler.leaves_room(request_id, self._sequences.n_cells, margin)

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
        self._context.use_lora(plan.batch_class.lora)
        return self._context.decode(batch)

    def _tell_progress(self, plan: StepPlan) -> None:
        for piece in plan.pieces:
            generation = self._generations[piece.request_id]
            if generation.submit.return_progress and piece.start < generation.n_prompt:
                self._progress_to(generation, min(piece.start + piece.count, generation.n_prompt))

    def _book(self, plan: StepPlan, elapsed_ms: float) -> None:
        """The step was carried out: all books but those of the sampled tokens."""
        self._scheduler.complete(plan, elapsed_ms)
        longest = 0
        for piece in plan.pieces:
            generation = self._generations[piece.request_id]
            end = piece.start + piece.count
            longest = max(longest, end)
            self._sequences.computed(generation.seq_id, generation.tokens[piece.start : end])
            request = self._scheduler.request(piece.request_id)
            if self._sequences.is_border(end) or end in request.stop_positions:
                self._sequences.checkpoint(generation.seq_id)
        self.metrics.step_done(len(plan.pieces), longest, elapsed_ms / 1e3)

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

    def _sample(self, rows: list[RowPiece]) -> list[tuple[Generation, int]]:
        """Sample the rows and tell of their tokens; the generations go on in `_go_on`."""
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
            if token >= 0:
                self._sampled(generation, row, token, now)
        return list(zip(generations, tokens, strict=True))

    def _sampled(self, g: Generation, row: int, token: int, now: float) -> None:
        g.n_generated += 1
        if g.n_generated == 1:
            self.metrics.first_token(g.n_prompt, now - g.queued_at)
            self._outlook.first_token(g, now)
        else:
            self.metrics.gap(g.n_prompt, now - g.last_token_at)
        g.last_token_at = now
        step = g.text.push(
            g.sampler.piece(token),
            is_eog=token in self._eog,
            n_generated=g.n_generated,
            n_computed=g.known,
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
                timings=self._timings(g) if wants_timings else None,
                probs=g.sampler.probs(self._context, row, token) if wants_probs else None,
                sampler_state=g.sampler.save(),
            )
        )
        if g.text.stop is not StopReason.NONE:
            self._done(g)

    def _go_on(self, g: Generation, token: int) -> None:
        """Book a sampled token, told already; negative: its sampler failed."""
        if token < 0:
            self._fail(g, 500, "server_error", g.sampler.error)
        elif g.text.stop is StopReason.NONE:
            g.append(token)
            self._scheduler.sampled(g.request_id)
        else:
            self._close(g)

    def _timings(self, g: Generation) -> Timings:
        return g.timings(self._scheduler.request(g.request_id).compute_ms)

    def _done(self, g: Generation) -> None:
        self._outlook.ended(g)
        self.metrics.generation_done(g.n_generated, g.last_token_at - g.prompt_done_at)
        self.events.append(
            Done(
                request_id=g.request_id,
                id_slot=g.slot,
                stop=g.text.stop,
                stopping_word=g.text.stopping_word,
                truncated=g.text.truncated,
                has_new_line=g.text.has_new_line,
                n_tokens_cached=g.known,
                text=g.text.flush(),
                cut=g.text.cut,
                timings=self._timings(g),
            )
        )

    # -- the end of a request --------------------------------------------------------------------

    def _fail(self, g: Generation, code: int, error_type: str, message: str) -> None:
        log.error("request %d failed: %s", g.request_id, message)
        self.events.append(Failed(g.request_id, code, error_type, message))
        self._close(g)

    def _close(self, g: Generation) -> None:
        request, left = self._scheduler.request(g.request_id), None
        if request.slot is not None:
            self._last_in_slot[request.slot] = g.slot_info(request.computed)
            left = Left(g.submit.tenant, g.root, g.tokens[: request.computed].copy())
        if request.stage is Stage.PARKED:
            self._sequences.drop_parked(g.request_id)
        elif request.held:
            self._sequences.release(g.seq_id)
        self._scheduler.finish(g.request_id)
        self._recovery.forget(g.request_id)
        del self._generations[g.request_id]
        if left is not None:
            self._slot_actions.leave(g.slot, left)
        self._has_ended = True
        self._outlook.changed()

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        self._scheduler.check_integrity()
        self._sequences.check_integrity()
        for request_id in self._generations:
            assert request_id in self._scheduler, f"request {request_id} is not scheduled"


def _unheard(predicted_ms: float) -> None:
    """Nobody watches."""


def _keep() -> None:
    """Events stay where they are until the caller takes them."""
