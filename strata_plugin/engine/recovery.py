"""What happens when a step can't be computed: park when cells are short, isolate when it fails.

llama-server answers every running request with 500 there and wipes its KV. Here the youngest
request makes room and continues later, and of a batch that fails each request is tried alone, so
that only one that can't be computed at all is answered with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from strata_plugin.checkpoints.resident import AllSequencesBusy
from strata_plugin.scheduling.plan import StepPlan
from strata_plugin.scheduling.scheduler import Scheduler

from .generation import Generation
from .sequences import Sequences

log = logging.getLogger(__name__)

NO_ROOM = 1  # llama_decode: no KV cells for the batch; nothing was changed
INVALID = -1  # llama_decode: the batch was refused; nothing was changed
UNPARK_MARGIN = 128  # tokens a request should be able to go on for when it comes back
MAX_LONE_FAILURES = 2  # a request that fails this often by itself is answered with an error

Fail = Callable[[Generation, int, str, str], None]


class Recovery:
    """Decides after a failed step; keeps track of suspects and of when to bring parked ones back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sequences: Sequences,
        generations: dict[int, Generation],
        fail: Fail,
    ) -> None:
        self._scheduler = scheduler
        self._sequences = sequences
        self._generations = generations
        self._fail = fail
        self._suspects: set[int] = set()  # were in a failed batch: run alone until they succeed
        self._may_unpark = False  # something ended since the last parking

    def isolate(self, plan: StepPlan) -> StepPlan:
        """`plan`, or one suspect's piece of it."""
        if self._suspects:
            for piece in plan.pieces:
                if piece.request_id in self._suspects:
                    return StepPlan(plan.batch_class, (piece,))
        return plan

    def after_success(self, plan: StepPlan) -> None:
        """The step worked: who was tried alone is no suspect any more."""
        for piece in plan.pieces:
            self._suspects.discard(piece.request_id)
            generation = self._generations.get(piece.request_id)
            if generation is not None:
                generation.failures = 0

    def forget(self, request_id: int) -> None:
        """A request has ended: there may be room for a parked one."""
        self._suspects.discard(request_id)
        self._may_unpark = True

    def after_failure(self, plan: StepPlan, code: int) -> None:
        """llama_decode returned `code` for `plan`: make the next step possible."""
        if code == NO_ROOM:
            self._make_room(plan)
            return
        log.warning("llama_decode failed with %d for %d requests", code, len(plan.pieces))
        if code != INVALID:
            for piece in plan.pieces:
                generation = self._generations[piece.request_id]
                held = self._sequences.cut_back(generation.seq_id, piece.start)
                if held != piece.start:
                    self._scheduler.rollback(piece.request_id, held)
        if len(plan.pieces) > 1:
            self._suspects.update(piece.request_id for piece in plan.pieces)
            return
        generation = self._generations[plan.pieces[0].request_id]
        generation.failures += 1
        self._suspects.add(generation.request_id)
        if generation.failures >= MAX_LONE_FAILURES or code == INVALID:
            self._fail(generation, 500, "server_error", f"the model failed to compute ({code})")

    # -- room ------------------------------------------------------------------------------------

    def _make_room(self, plan: StepPlan) -> None:
        if self._sequences.evict_one():
            return
        youngest = self._scheduler.youngest()
        if youngest is None or len(self._scheduler.running()) == 1:
            # alone and still no room: it can't be computed in this context
            generation = self._generations[plan.pieces[0].request_id]
            self._fail(
                generation, 500, "server_error", "no room in the KV cache for this request alone"
            )
            return
        generation = self._generations[youngest]
        log.info("no room in the KV cache: parking request %d", youngest)
        self._sequences.park(youngest, generation.seq_id)
        self._scheduler.park(youngest)
        generation.seq_id = -1
        self._may_unpark = False

    def unpark_one(self, *, force: bool) -> None:
        """Bring the oldest parked request back if something ended since, or if nothing else runs.
        """
        if not (force or self._may_unpark):
            return
        parked = self._scheduler.parked()
        if not parked:
            return
        generation = self._generations[parked[0]]
        if not force and not self._sequences.room_for(generation.known + UNPARK_MARGIN):
            return
        try:
            seq_id, held = self._sequences.unpark(
                generation.request_id, generation.tokens, generation.root
            )
        except AllSequencesBusy:
            return
        generation.seq_id = seq_id
        self._scheduler.unpark(generation.request_id, held)
        if len(parked) == 1:
            self._may_unpark = False
