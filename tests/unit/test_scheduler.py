"""The scheduler's promises, one small scene each."""

from __future__ import annotations

from typing import ClassVar

import pytest

from strata_plugin.scheduling.cost import AnalyticCost, StepShape
from strata_plugin.scheduling.plan import ReadPiece, RowPiece, StepPlan
from strata_plugin.scheduling.request import Stage
from strata_plugin.scheduling.scheduler import Limits, Scheduler

from .factories import EMBEDDING, LORA, PLAIN, FakeEngine, make_scheduler


def admit_all(scheduler: Scheduler) -> list[tuple[int, int]]:
    pairs = scheduler.admissible()
    for request_id, slot in pairs:
        scheduler.admit(request_id, slot, 0)
    return pairs


def step(scheduler: Scheduler) -> StepPlan:
    """Plan, compute and sample one token per row."""
    plan = scheduler.plan()
    assert plan is not None
    scheduler.complete(plan, 10.0)
    for piece in plan.pieces:
        if isinstance(piece, RowPiece):
            scheduler.sampled(piece.request_id)
    scheduler.check_integrity()
    return plan


def test_a_prompt_is_read_in_pieces_and_only_its_end_is_sampled() -> None:
    scheduler = make_scheduler(n_batch=100)
    scheduler.submit(7, n_prompt=250, arrival=0.0)
    admit_all(scheduler)
    assert step(scheduler).pieces == (ReadPiece(7, 0, 100),)
    assert step(scheduler).pieces == (ReadPiece(7, 100, 100),)
    assert scheduler.request(7).stage is Stage.READING
    assert step(scheduler).pieces == (RowPiece(7, 200, 50),)
    assert scheduler.request(7).stage is Stage.WRITING
    assert step(scheduler).pieces == (RowPiece(7, 250, 1),)


def test_nothing_is_planned_between_computing_and_sampling() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=5, arrival=0.0)
    admit_all(scheduler)
    plan = scheduler.plan()
    assert plan is not None
    scheduler.complete(plan, 1.0)
    assert scheduler.plan() is None
    scheduler.sampled(1)
    assert scheduler.plan() == StepPlan(PLAIN, (RowPiece(1, 5, 1),))


def test_an_unfinished_prompt_cannot_be_sampled() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=5, arrival=0.0)
    admit_all(scheduler)
    with pytest.raises(ValueError, match="5 tokens to compute first"):
        scheduler.sampled(1)


def test_cached_tokens_are_not_computed_again() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=90, arrival=0.0)
    scheduler.admit(1, 0, 80)
    assert step(scheduler).pieces == (RowPiece(1, 80, 10),)


def test_a_whole_cached_prompt_leaves_no_logits_and_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=90, arrival=0.0)
    with pytest.raises(ValueError, match="90 computed"):
        scheduler.admit(1, 0, 90)


def test_rows_come_first_and_prompts_share_the_budget_which_counts_prompt_tokens_only() -> None:
    scheduler = make_scheduler(n_batch=512, budget=64)
    for request_id, n_prompt in ((1, 8), (2, 40), (3, 100)):
        scheduler.submit(request_id, n_prompt=n_prompt, arrival=float(request_id))
    scheduler.admit(1, 0, 0)
    step(scheduler)
    admit_all(scheduler)
    assert step(scheduler).pieces == (RowPiece(1, 8, 1), RowPiece(2, 0, 40), ReadPiece(3, 0, 24))


def test_arrival_decides_between_equals_even_when_submitted_later() -> None:
    scheduler = make_scheduler(n_rows=1)
    scheduler.submit(1, n_prompt=8, arrival=5.0)
    scheduler.submit(2, n_prompt=8, arrival=1.0)
    assert scheduler.queued() == (2, 1)
    assert [scheduler.queue_position(i) for i in (1, 2)] == [1, 0]
    assert scheduler.admissible() == [(2, 0)]


def test_stop_positions_are_borders_of_steps() -> None:
    scheduler = make_scheduler(n_batch=512)
    scheduler.submit(1, n_prompt=100, arrival=0.0, stop_positions=(60, 0, 30, 100, 500))
    scheduler.submit(2, n_prompt=10, arrival=1.0)
    admit_all(scheduler)
    assert step(scheduler).pieces == (RowPiece(2, 0, 10), ReadPiece(1, 0, 30))
    assert step(scheduler).pieces == (RowPiece(2, 10, 1), ReadPiece(1, 30, 30))
    assert step(scheduler).pieces == (RowPiece(2, 11, 1), RowPiece(1, 60, 40))


def test_a_batch_has_no_room_for_more_prompt_tokens_than_the_rows_leave() -> None:
    scheduler = make_scheduler(n_rows=5, n_batch=20, budget=20)
    for request_id in range(4):
        scheduler.submit(request_id, n_prompt=1, arrival=0.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.submit(9, n_prompt=1000, arrival=1.0)
    admit_all(scheduler)
    plan = step(scheduler)
    assert len(plan.pieces) == 5
    assert plan.pieces[-1] == ReadPiece(9, 0, 16)


@pytest.mark.parametrize("n_batch", [1, 2, 3])
def test_batches_smaller_than_the_rows_serve_everybody_in_turn(n_batch: int) -> None:
    engine = FakeEngine(make_scheduler(n_rows=4, n_batch=n_batch, n_ubatch=1))
    for _ in range(4):
        engine.submit(n_prompt=6, n_predict=12)
    for _ in range(30 * 4 // n_batch):
        engine.step()
    assert len(engine.finished) == 4


@pytest.mark.parametrize("n_batch", [1, 2, 3])
def test_the_oldest_do_not_keep_a_small_batch_for_themselves(n_batch: int) -> None:
    engine = FakeEngine(make_scheduler(n_rows=4, n_batch=n_batch, n_ubatch=1))
    for _ in range(4):
        engine.submit(n_prompt=6, n_predict=1000)
    for _ in range(60):
        engine.step()
    assert all(job.computed >= 6 for job in engine.jobs.values())


class Notebook(AnalyticCost):
    """A cost model that keeps what it is told."""

    seen: ClassVar[list[tuple[StepShape, float]]] = []

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        self.seen.append((shape, elapsed_ms))


def test_the_cost_model_is_told_the_shape_of_each_step_and_its_time() -> None:
    cost = Notebook(pass_ms=1.0, token_ms=1.0)
    cost.seen.clear()
    scheduler = make_scheduler(n_rows=2, n_batch=100, budget=64, cost=cost)
    scheduler.submit(1, n_prompt=4, arrival=0.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.submit(2, n_prompt=200, arrival=1.0)
    admit_all(scheduler)
    scheduler.other_cells = 1000
    step(scheduler)
    # a token of a piece sees, on average, what was there and half of the piece
    assert cost.seen == [
        (StepShape(0, 4, 4, 4 * 2.0), 10.0),
        (StepShape(1, 64, 1000 + 4 + 65, 4.5 + 64 * 32.0), 10.0),
    ]


# ---- slots ---------------------------------------------------------------------------------------


def test_one_who_waits_for_a_busy_slot_holds_nobody_up() -> None:
    scheduler = make_scheduler(n_rows=2)
    scheduler.submit(1, n_prompt=8, arrival=0.0, id_slot=1)
    admit_all(scheduler)
    scheduler.submit(2, n_prompt=8, arrival=1.0, id_slot=1)
    scheduler.submit(3, n_prompt=8, arrival=2.0)
    assert scheduler.admissible() == [(3, 0)]
    scheduler.admit(3, 0, 0)
    scheduler.submit(4, n_prompt=8, arrival=3.0)
    scheduler.finish(1)
    assert scheduler.admissible() == [(2, 1)], "the earlier, pinned one goes first"


def test_slots_that_others_are_pinned_to_are_taken_last() -> None:
    scheduler = make_scheduler(n_rows=2)
    scheduler.submit(1, n_prompt=8, arrival=0.0)
    scheduler.submit(2, n_prompt=8, arrival=1.0, id_slot=0)
    assert admit_all(scheduler) == [(1, 1), (2, 0)]


def test_a_slot_pinned_by_a_waiting_fork_is_not_kept_free_for_it() -> None:
    scheduler = make_scheduler(n_rows=2)
    scheduler.submit(1, n_prompt=8, arrival=0.0)
    scheduler.admit(1, 0, 0)
    scheduler.submit(2, n_prompt=8, arrival=0.0, id_slot=1, fork_of=1)
    scheduler.submit(3, n_prompt=8, arrival=1.0)
    assert scheduler.admissible() == [(3, 1)]


def test_pins_wrap_around_as_in_llama_server() -> None:
    scheduler = make_scheduler(n_rows=4)
    scheduler.submit(1, n_prompt=8, arrival=0.0, id_slot=6)
    assert scheduler.admissible() == [(1, 2)]


def test_a_slot_is_given_once_and_only_to_whom_it_suits() -> None:
    scheduler = make_scheduler(n_rows=2)
    for request_id, pin in ((1, -1), (2, -1), (3, 1)):
        scheduler.submit(request_id, n_prompt=8, arrival=0.0, id_slot=pin)
    scheduler.admit(1, 0, 0)
    with pytest.raises(ValueError, match="slot 0 is not free"):
        scheduler.admit(2, 0, 0)
    with pytest.raises(ValueError, match="slot 2 is not free"):
        scheduler.admit(2, 2, 0)
    with pytest.raises(ValueError, match="not queued"):
        scheduler.admit(1, 1, 0)
    scheduler.finish(1)
    with pytest.raises(ValueError, match="insists on slot 1"):
        scheduler.admit(3, 0, 0)
    scheduler.check_integrity()


# ---- reading ahead -------------------------------------------------------------------------------


def read_ahead(scheduler: Scheduler) -> list[int]:
    ids = scheduler.ahead()
    for request_id in ids:
        scheduler.admit(request_id, None, 0)
    return ids


def seat_all(scheduler: Scheduler) -> list[tuple[int, int]]:
    pairs = scheduler.seats()
    for request_id, slot in pairs:
        scheduler.seat(request_id, slot)
    return pairs


def test_prompts_are_read_ahead_while_all_rows_are_taken_but_for_their_last_token() -> None:
    scheduler = make_scheduler(n_rows=1, n_spare=2)
    for request_id in (1, 2, 3, 4):
        scheduler.submit(request_id, n_prompt=10, arrival=float(request_id))
    assert admit_all(scheduler) == [(1, 0)]
    assert read_ahead(scheduler) == [2, 3], "as many as there are sequences"
    assert step(scheduler).pieces == (RowPiece(1, 0, 10), ReadPiece(2, 0, 9), ReadPiece(3, 0, 9))
    assert scheduler.request(2).stage is Stage.READING
    assert scheduler.seats() == []
    assert step(scheduler).pieces == (RowPiece(1, 10, 1),)
    scheduler.finish(1)
    assert read_ahead(scheduler) == [], "the sequence goes with the row"
    assert seat_all(scheduler) == [(2, 0)]
    assert read_ahead(scheduler) == [4]
    assert step(scheduler).pieces == (RowPiece(2, 9, 1), ReadPiece(4, 0, 9))


def test_a_prompt_of_one_token_needs_a_row() -> None:
    scheduler = make_scheduler(n_rows=1, n_spare=1)
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.submit(2, n_prompt=1, arrival=1.0)
    read_ahead(scheduler)
    assert step(scheduler).pieces == (RowPiece(1, 10, 1),)
    scheduler.finish(1)
    assert scheduler.plan() is None, "nothing to compute before it has a row"
    assert seat_all(scheduler) == [(2, 0)]
    assert step(scheduler).pieces == (RowPiece(2, 0, 1),)


def test_one_who_is_read_takes_the_row_of_the_reader_with_the_most_left_who_reads_on() -> None:
    scheduler = make_scheduler(n_rows=2, n_spare=1, budget=30)
    scheduler.submit(1, n_prompt=500, arrival=0.0)
    scheduler.submit(2, n_prompt=900, arrival=0.0)
    admit_all(scheduler)
    scheduler.submit(3, n_prompt=20, arrival=1.0)
    read_ahead(scheduler)
    step(scheduler)
    before = scheduler.request(2).computed
    assert seat_all(scheduler) == [(3, 1)]
    assert scheduler.request(2).slot is None
    assert scheduler.request(2).computed == before
    assert scheduler.request(2).stage is Stage.READING
    step(scheduler)
    assert scheduler.request(3).stage is Stage.WRITING
    scheduler.finish(3)
    assert seat_all(scheduler) == [(2, 1)], "it has its row again when there is one"


def test_neither_writers_nor_those_with_a_pin_nor_parked_ones_lose_their_rows() -> None:
    scheduler = make_scheduler(n_rows=3, n_spare=1, budget=64)
    scheduler.submit(1, n_prompt=8, arrival=0.0)
    scheduler.submit(2, n_prompt=900, arrival=0.0, id_slot=1)
    scheduler.submit(3, n_prompt=900, arrival=0.0)
    admit_all(scheduler)
    scheduler.park(3)
    scheduler.submit(4, n_prompt=20, arrival=1.0)
    read_ahead(scheduler)
    step(scheduler)
    assert scheduler.request(4).read
    assert scheduler.seats() == []
    for slot in range(3):
        with pytest.raises(ValueError, match=f"slot {slot} is not free"):
            scheduler.seat(4, slot)
    scheduler.check_integrity()


def test_one_who_reads_lost_tokens_again_keeps_its_row() -> None:
    scheduler = make_scheduler(n_rows=1, n_spare=1, budget=30)
    scheduler.submit(1, n_prompt=20, arrival=0.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.rollback(1, 0)
    scheduler.submit(2, n_prompt=5, arrival=0.0)
    read_ahead(scheduler)
    step(scheduler)
    assert scheduler.request(2).read
    assert scheduler.seats() == []


def test_one_pinned_to_a_busy_slot_is_read_ahead_and_waits_for_that_slot() -> None:
    scheduler = make_scheduler(n_rows=2, n_spare=1)
    scheduler.submit(1, n_prompt=8, arrival=0.0, id_slot=0)
    scheduler.submit(2, n_prompt=8, arrival=0.0, id_slot=1)
    admit_all(scheduler)
    step(scheduler)
    scheduler.submit(3, n_prompt=8, arrival=1.0, id_slot=1)
    read_ahead(scheduler)
    step(scheduler)
    scheduler.finish(1)
    assert scheduler.seats() == []
    with pytest.raises(ValueError, match="insists on slot 1"):
        scheduler.seat(3, 0)
    scheduler.finish(2)
    assert scheduler.seats() == [(3, 1)]


def test_reading_ahead_for_a_busy_slot_leaves_the_rows_their_sequences() -> None:
    scheduler = make_scheduler(n_rows=2, n_spare=0)
    scheduler.submit(1, n_prompt=8, arrival=0.0)
    admit_all(scheduler)
    scheduler.submit(2, n_prompt=8, arrival=1.0, id_slot=0)
    read_ahead(scheduler)
    scheduler.submit(3, n_prompt=8, arrival=2.0)
    assert admit_all(scheduler) == [(3, 1)]
    scheduler.check_integrity()


def test_a_row_is_not_given_to_one_who_has_one_or_waits_in_the_queue() -> None:
    scheduler = make_scheduler(n_rows=2, n_spare=1)
    scheduler.submit(1, n_prompt=8, arrival=0.0)
    with pytest.raises(ValueError, match="not waiting for a row"):
        scheduler.seat(1, 0)
    scheduler.admit(1, 0, 0)
    with pytest.raises(ValueError, match="not waiting for a row"):
        scheduler.seat(1, 1)
    scheduler.submit(2, n_prompt=8, arrival=0.0)
    scheduler.admit(2, None, 0)
    with pytest.raises(ValueError, match="slot 7 is not free"):
        scheduler.seat(2, 7)
    scheduler.check_integrity()


def test_parked_requests_without_a_row_come_back_to_read_on() -> None:
    scheduler = make_scheduler(n_rows=1, n_spare=1, budget=16)
    scheduler.submit(1, n_prompt=8, arrival=0.0)
    admit_all(scheduler)
    scheduler.submit(2, n_prompt=40, arrival=1.0)
    read_ahead(scheduler)
    step(scheduler)
    scheduler.park(2)
    scheduler.finish(1)
    assert scheduler.seats() == []
    assert scheduler.plan() is None
    scheduler.unpark(2, 4)
    assert seat_all(scheduler) == [(2, 0)]
    assert step(scheduler).pieces == (ReadPiece(2, 4, 16),)


def test_those_without_a_row_are_parked_first() -> None:
    scheduler = make_scheduler(n_rows=1, n_spare=1)
    scheduler.submit(2, n_prompt=40, arrival=1.0)
    admit_all(scheduler)
    scheduler.submit(1, n_prompt=40, arrival=0.0)
    read_ahead(scheduler)
    assert scheduler.youngest() == 1, "it came first but has no row"
    assert scheduler.youngest(exclude={1}) == 2


# ---- llama-server's way --------------------------------------------------------------------------


def test_upstream_reads_in_order_of_slots_as_much_as_fits_a_batch_and_never_ahead() -> None:
    scheduler = make_scheduler(n_rows=2, n_batch=50, n_spare=2, policy="upstream")
    scheduler.submit(1, n_prompt=80, arrival=0.0, id_slot=1)
    scheduler.submit(2, n_prompt=80, arrival=1.0, id_slot=0)
    scheduler.submit(3, n_prompt=5, arrival=2.0)
    admit_all(scheduler)
    assert read_ahead(scheduler) == []
    assert step(scheduler).pieces == (ReadPiece(2, 0, 50),)
    assert step(scheduler).pieces == (RowPiece(2, 50, 30), ReadPiece(1, 0, 20))
    assert step(scheduler).pieces == (RowPiece(2, 80, 1), ReadPiece(1, 20, 49))


def test_upstream_gives_rows_in_order_of_arrival_whatever_the_length() -> None:
    scheduler = make_scheduler(n_rows=1, policy="upstream")
    scheduler.submit(1, n_prompt=800, arrival=0.0)
    scheduler.submit(2, n_prompt=8, arrival=1.0, priority=5)
    assert admit_all(scheduler) == [(1, 0)]


# ---- forks ---------------------------------------------------------------------------------------


def test_forks_wait_until_their_parents_prompt_is_computed() -> None:
    scheduler = make_scheduler(n_batch=64)
    scheduler.submit(1, n_prompt=100, arrival=0.0)
    scheduler.submit(2, n_prompt=100, arrival=0.0, fork_of=1)
    scheduler.submit(3, n_prompt=5, arrival=0.0)
    assert admit_all(scheduler) == [(3, 0), (1, 1)]
    step(scheduler)
    assert scheduler.admissible() == scheduler.ahead() == []
    step(scheduler)
    assert scheduler.admissible() == [(2, 2)]


def test_forks_of_a_parent_that_is_gone_do_not_wait() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=100, arrival=0.0)
    scheduler.submit(2, n_prompt=100, arrival=0.0, fork_of=1)
    scheduler.submit(3, n_prompt=100, arrival=0.0, fork_of=99)
    scheduler.cancel(1)
    assert scheduler.admissible() == [(2, 0), (3, 1)]


def test_an_id_used_again_is_not_taken_for_the_parent_of_old() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=100, arrival=0.0)
    scheduler.submit(2, n_prompt=100, arrival=0.0, fork_of=1)
    scheduler.cancel(1)
    scheduler.submit(1, n_prompt=100, arrival=0.0)
    assert [request_id for request_id, _ in scheduler.admissible()] == [2, 1]


def test_forks_of_a_parked_parent_wait_for_its_return() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.park(1)
    scheduler.submit(2, n_prompt=10, arrival=0.0, fork_of=1)
    assert scheduler.admissible() == []
    scheduler.unpark(1, 10)
    assert scheduler.admissible() == [(2, 1)]


# ---- classes -------------------------------------------------------------------------------------


def test_batch_classes_take_turns_however_long_one_of_them_reads() -> None:
    scheduler = make_scheduler(n_batch=16)
    for request_id, batch_class in ((1, PLAIN), (2, PLAIN), (3, EMBEDDING), (4, LORA)):
        scheduler.submit(request_id, n_prompt=300, arrival=0.0, batch_class=batch_class)
    admit_all(scheduler)
    assert [step(scheduler).batch_class for _ in range(6)] == [PLAIN, EMBEDDING, LORA] * 2


# ---- parking, going back, ending -----------------------------------------------------------------


def test_a_parked_request_keeps_its_slot_and_is_not_planned() -> None:
    scheduler = make_scheduler(n_rows=2)
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    scheduler.submit(2, n_prompt=10, arrival=1.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.park(2)
    assert scheduler.request(2).stage is Stage.PARKED
    assert scheduler.holder(1) == 2
    assert step(scheduler).pieces == (RowPiece(1, 10, 1),)
    scheduler.unpark(2, 7)
    assert step(scheduler).pieces == (RowPiece(1, 11, 1), RowPiece(2, 7, 4))


def test_the_youngest_is_the_one_to_park() -> None:
    scheduler = make_scheduler(n_rows=3)
    for request_id, arrival in ((1, 2.0), (2, 0.0), (3, 1.0), (4, 9.0)):
        scheduler.submit(request_id, n_prompt=10, arrival=arrival)
    admit_all(scheduler)
    assert scheduler.queued() == (4,)
    assert scheduler.youngest() == 1
    assert scheduler.youngest(exclude={1}) == 3
    scheduler.park(1)
    assert scheduler.youngest() == 3
    assert (scheduler.running(), scheduler.parked()) == ((2, 3), (1,))
    assert scheduler.youngest(exclude={2, 3}) is None


def test_tokens_lost_from_the_cache_are_read_again_but_not_sampled_again() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    for _ in range(4):
        step(scheduler)
    scheduler.rollback(1, 3)
    assert scheduler.request(1).stage is Stage.READING
    assert step(scheduler).pieces == (RowPiece(1, 3, 11),)
    assert scheduler.request(1).known == 15


def test_several_tokens_after_the_prompt_are_computed_in_one_piece() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    plan = scheduler.plan()
    assert plan is not None
    scheduler.complete(plan, 1.0)
    scheduler.sampled(1, 4)
    assert scheduler.plan() == StepPlan(PLAIN, (RowPiece(1, 10, 4),))
    with pytest.raises(ValueError, match="4 tokens to compute first"):
        scheduler.sampled(1, 0)
    step(scheduler)
    assert step(scheduler).pieces == (RowPiece(1, 14, 1),)


def test_going_forward_or_to_where_nothing_is_left_to_compute_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    with pytest.raises(ValueError, match="go back"):
        scheduler.rollback(1, 1)
    plan = scheduler.plan()
    assert plan is not None
    scheduler.complete(plan, 1.0)
    with pytest.raises(ValueError, match="go back"):
        scheduler.rollback(1, 10)
    with pytest.raises(ValueError, match="sampled first"):
        scheduler.park(1)


def test_a_plan_of_the_past_is_refused_whole() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    scheduler.submit(2, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    plan = step(scheduler)
    with pytest.raises(ValueError, match="does not continue"):
        scheduler.complete(plan, 1.0)
    assert scheduler.request(1).computed == 10


def test_one_cancelled_in_mid_step_does_not_disturb_the_others() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    scheduler.submit(2, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    plan = scheduler.plan()
    assert plan is not None
    ended = scheduler.cancel(1)
    scheduler.complete(plan, 1.0)
    assert ended.stage is Stage.FINISHED
    assert 1 not in scheduler
    assert scheduler.request(2).computed == 10
    scheduler.check_integrity()


def test_stages_are_counted() -> None:
    scheduler = make_scheduler(n_rows=3, n_batch=20)
    assert scheduler.idle
    for request_id in range(5):
        scheduler.submit(request_id, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    step(scheduler)
    scheduler.park(0)
    assert scheduler.counts() == {
        Stage.QUEUED: 2,
        Stage.READING: 1,
        Stage.WRITING: 1,
        Stage.PARKED: 1,
    }
    assert not scheduler.idle


def test_wrong_submissions_are_refused() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    with pytest.raises(ValueError, match="already known"):
        scheduler.submit(1, n_prompt=10, arrival=0.0)
    with pytest.raises(ValueError, match="empty prompt"):
        scheduler.submit(2, n_prompt=0, arrival=0.0)
    with pytest.raises(KeyError):
        scheduler.finish(3)
    with pytest.raises(ValueError, match="positive"):
        Limits(n_rows=0, n_batch=1, n_ubatch=1)


def test_the_integrity_check_finds_a_damaged_request() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    admit_all(scheduler)
    scheduler.request(1).computed = 11
    with pytest.raises(AssertionError, match="computed 11 of 10"):
        scheduler.check_integrity()
    scheduler.request(1).computed = 0
    scheduler.request(1).slot = 3
    with pytest.raises(AssertionError, match="slots"):
        scheduler.check_integrity()
