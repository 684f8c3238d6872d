"""The step loop on a fake context: right tokens whatever happens, and events in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.engine.messages import Done, Failed, Progress, Queued, Started, StopReason, Token

from .fake_engine import FakeEngine, expected_tokens

A = list(range(1, 30))
B = list(range(20, 45))


def test_tokens_are_the_models_and_events_come_in_order():
    engine = FakeEngine()
    engine.submit(1, A, n=5)
    engine.run()
    assert engine.tokens(1) == expected_tokens(A, 5)
    kinds = [type(e) for e in engine.of(1)]
    assert kinds == [Queued, Started, *[Token] * 5, Done]
    done = engine.end(1)
    assert done.stop is StopReason.LIMIT
    assert done.timings.prompt_n == len(A) and done.timings.predicted_n == 5
    assert done.n_tokens_cached == len(A) + 4  # the last token was never computed


@pytest.mark.parametrize("n_rows", [1, 2, 8, 9, 16, 32])
def test_every_row_gets_its_own_tokens(n_rows):
    engine = FakeEngine(n_rows=n_rows, n_ctx=10_000)
    for i in range(n_rows + 3):  # more than rows: the rest queues
        engine.submit(i, [i + 1, *A], n=6)
    engine.run()
    for i in range(n_rows + 3):
        assert engine.tokens(i) == expected_tokens([i + 1, *A], 6)


def test_a_follow_up_computes_only_what_is_new():
    engine = FakeEngine()
    engine.submit(1, A, n=4)
    engine.run()
    history = A + engine.tokens(1)
    before = engine.context.n_computed
    engine.submit(2, [*history, 7, 8], n=1)
    engine.run()
    # the last sampled token was never computed, so it and the two new ones are
    assert engine.context.n_computed - before == 3
    assert engine.end(2).timings.cache_n == len(history) - 1


def test_the_same_prompt_again_computes_one_token():
    engine = FakeEngine()
    engine.submit(1, A, n=1)
    engine.run()
    before = engine.context.n_computed
    engine.submit(2, A, n=1)
    engine.run()
    assert engine.context.n_computed - before == 1


def test_idle_sequences_leave_the_cache_and_come_back_from_ram():
    """Attention scans all cells that are in use, so those of finished requests slow down others."""
    engine = FakeEngine()
    engine.submit(1, A, n=4)
    engine.run()
    engine.submit(2, B, n=4)
    engine.run()
    assert engine.context.used_cells == len(B) + 3
    before = engine.context.n_computed
    engine.submit(3, [*A, *engine.tokens(1), 7], n=1)
    engine.run()
    assert engine.context.n_computed - before == 2
    assert engine.tokens(3) == expected_tokens([*A, *engine.tokens(1), 7], 1)


def test_without_room_in_ram_idle_sequences_stay_in_the_cache():
    engine = FakeEngine(park_bytes=0)
    engine.submit(1, A, n=4)
    engine.run()
    engine.submit(2, B, n=4)
    engine.run()
    engine.submit(3, [*A, *engine.tokens(1), 7], n=1)
    engine.run()
    assert engine.end(3).timings.cache_n == len(A) + 3


def test_idle_states_give_way_to_parked_requests_and_to_newer_ones():
    engine = FakeEngine(n_ctx=80, park_bytes=4 * 75)
    for i, prompt in enumerate(([5, *A], [6, *A], A, B)):
        engine.submit(i, prompt, n=45)
    engine.run()
    for i, prompt in enumerate(([5, *A], [6, *A], A, B)):
        assert engine.tokens(i) == expected_tokens(prompt, 45)
    assert engine.lot.used_bytes <= 4 * 75


def test_no_reuse_when_the_request_says_so():
    engine = FakeEngine()
    engine.submit(1, A, n=1)
    engine.run()
    engine.submit(2, A, n=1, cache_prompt=False)
    engine.run()
    assert engine.end(2).timings.cache_n == 0


def test_a_running_sequence_lends_its_prefix():
    engine = FakeEngine()
    engine.submit(1, A, n=50)
    while not engine.tokens(1):
        engine.step()
    engine.submit(2, [*A, 9], n=2)
    engine.run()
    assert engine.end(2).timings.cache_n == len(A)
    assert engine.tokens(1) == expected_tokens(A, 50)
    assert engine.tokens(2) == expected_tokens([*A, 9], 2)


def test_a_cancelled_read_resumes_at_the_unfinished_step():
    engine = FakeEngine(quantum_ms=20)
    prompt = [1 + i % 49 for i in range(200)]
    engine.submit(1, prompt, n=4)
    for _ in range(3):
        engine.step()
    read = engine.context.n_computed
    assert 0 < read < len(prompt)
    engine.cancel(1)
    assert engine.core.idle
    engine.submit(2, prompt, n=4)
    engine.run()
    assert engine.end(2).timings.cache_n == read
    assert engine.tokens(2) == expected_tokens(prompt, 4)


def test_cancelling_one_leaves_the_others_alone():
    engine = FakeEngine()
    engine.submit(1, A, n=30)
    engine.submit(2, B, n=30)
    engine.step()
    engine.step()
    engine.cancel(1)
    engine.cancel(1)  # twice is harmless
    engine.run()
    assert engine.tokens(2) == expected_tokens(B, 30)
    assert not isinstance(engine.of(1)[-1], Done)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("park_bytes", [1 << 20, 0])
def test_short_of_cells_the_youngest_waits_and_nobody_fails(recurrent, park_bytes):
    engine = FakeEngine(n_ctx=100, recurrent=recurrent, park_bytes=park_bytes)
    for i, prompt in enumerate((A, B, [3, *A])):
        engine.submit(i, prompt, n=40)
    engine.run()
    for i, prompt in enumerate((A, B, [3, *A])):
        assert engine.tokens(i) == expected_tokens(prompt, 40)
        assert isinstance(engine.end(i), Done)
    assert not engine.parked_states()


def test_parking_computes_nothing_twice():
    engine = FakeEngine(n_ctx=100)
    prompts = (A, B, [3, *A])
    for i, prompt in enumerate(prompts):
        engine.submit(i, prompt, n=40, cache_prompt=False)
    engine.run()
    assert engine.context.n_computed == sum(len(p) + 39 for p in prompts)


def test_a_parked_reader_may_come_back_with_more_than_it_had_read():
    """Another request with the same beginning read on meanwhile."""
    engine = FakeEngine(n_ctx=400)
    prompt = [1 + i % 49 for i in range(250)]
    engine.submit(1, prompt, n=30)
    engine.submit(2, [*prompt, 5, 6, 7], n=5)
    engine.run()
    assert engine.tokens(1) == expected_tokens(prompt, 30)
    assert engine.tokens(2) == expected_tokens([*prompt, 5, 6, 7], 5)


def test_newcomers_do_not_starve_a_parked_request():
    engine = FakeEngine(n_ctx=400, n_rows=4)
    engine.submit(1, [1, *A], n=120)
    engine.submit(2, [1 + i % 47 for i in range(330)], n=10)
    newcomers = iter(range(10, 400))
    for _ in range(600):
        if len(engine.scheduler.queued()) < 3:
            number = next(newcomers)
            engine.submit(number, [2 + number % 45, *B], n=60)
        engine.step()
        if any(isinstance(e, Done) for e in engine.of(2)):
            return
    raise AssertionError("the large request never ended")


def test_a_state_that_can_not_be_saved_is_computed_again():
    def no_memory(seq_id, *args):
        raise MemoryError

    engine = FakeEngine(n_ctx=100)
    engine.context.save_state = engine.context.save_range = no_memory
    for i, prompt in enumerate((A, B, [3, *A])):
        engine.submit(i, prompt, n=40)
    engine.run()
    for i, prompt in enumerate((A, B, [3, *A])):
        assert engine.tokens(i) == expected_tokens(prompt, 40)
    assert engine.lot.used_bytes == 0


def test_a_request_cancelled_while_parked_leaves_nothing_behind():
    engine = FakeEngine(n_ctx=80)
    engine.submit(1, A, n=45)
    engine.submit(2, B, n=45)
    while not engine.scheduler.parked():
        engine.step()
    assert engine.parked_states() == [2]
    engine.cancel(2)
    assert not engine.parked_states()
    engine.run()
    assert engine.tokens(1) == expected_tokens(A, 45)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("code", [2, -2, -3, -1])
def test_after_a_failed_step_all_go_on_with_the_same_text(recurrent, code):
    engine = FakeEngine(recurrent=recurrent)
    engine.submit(1, A, n=10)
    engine.submit(2, B, n=10)
    for _ in range(4):
        engine.step()
    engine.context.codes.extend([code])
    engine.run()
    assert engine.tokens(1) == expected_tokens(A, 10)
    assert engine.tokens(2) == expected_tokens(B, 10)


@pytest.mark.parametrize("code", [2, -2, -3, -1])
def test_a_request_that_can_not_be_computed_fails_alone(code):
    engine = FakeEngine()
    poison = [48, *A]
    engine.context.poison = lambda batch: code if any(t == 48 for _, t, _, _ in batch.rows) else 0
    engine.submit(1, A, n=12)
    engine.submit(2, poison, n=12)
    engine.submit(3, B, n=12)
    engine.run()
    failed = engine.end(2)
    assert isinstance(failed, Failed) and failed.code == 500
    good = [r for r in (1, 3) if 48 not in expected_tokens(A if r == 1 else B, 12)]
    assert good
    for r in good:
        assert engine.tokens(r) == expected_tokens(A if r == 1 else B, 12)


def test_a_sampler_that_fails_fails_its_request_alone():
    engine = FakeEngine()
    engine.submit(1, A, n=10)
    engine.submit(2, B, n=10, fails_at=3)
    engine.run()
    failed = engine.end(2)
    assert isinstance(failed, Failed) and failed.message == "grammar broke"
    assert engine.tokens(1) == expected_tokens(A, 10)


def test_choices_of_one_prompt_share_it():
    engine = FakeEngine()
    engine.submit(1, A, n=5)
    engine.submit(2, A, n=5, fork_of=1)
    engine.submit(3, A, n=5, fork_of=1)
    engine.run()
    assert [engine.end(i).timings.cache_n for i in (1, 2, 3)] == [0, len(A) - 1, len(A) - 1]


def test_progress_falls_on_batch_borders_and_ends_with_the_prompt():
    engine = FakeEngine(quantum_ms=10)
    prompt = [1 + i % 49 for i in range(150)]
    engine.submit(1, prompt, n=1, return_progress=True)
    engine.run()
    processed = [e.processed for e in engine.of(1) if isinstance(e, Progress)]
    assert processed == [0, 64, 128, 150]


def test_a_prompt_that_fills_the_context_is_refused_before_anything_is_computed():
    engine = FakeEngine(n_ctx_slot=20)
    engine.submit(1, A, n=1)
    failed = engine.end(1)
    assert isinstance(failed, Failed) and failed.error_type == "exceed_context_size_error"
    assert engine.core.idle and engine.context.n_computed == 0


def test_generation_ends_truncated_when_the_context_is_full():
    engine = FakeEngine(n_ctx_slot=40)
    engine.submit(1, A, n=-1)
    engine.run()
    done = engine.end(1)
    assert isinstance(done, Done) and done.truncated and done.stop is StopReason.LIMIT
    assert done.n_tokens_cached + 1 == 40


def test_each_request_is_computed_with_its_own_adapters_and_finds_only_what_they_computed():
    engine = FakeEngine()
    mixtures = ((), ((0, 1.0),), ((0, 0.5), (1, 2.0)), ((0, 1.0),))
    for i, mixture in enumerate(mixtures):
        engine.submit(i, A, n=6, lora=mixture)
    engine.run()
    for i, mixture in enumerate(mixtures):
        assert engine.tokens(i) == expected_tokens(A, 6, mixture)
    engine.submit(9, A, n=6, lora=((1, 2.0),))
    engine.submit(10, A, n=6, lora=((0, 1.0),))
    engine.run()
    assert engine.tokens(9) == expected_tokens(A, 6, ((1, 2.0),))
    assert engine.tokens(10) == expected_tokens(A, 6, ((0, 1.0),))
    assert engine.end(9).timings.cache_n == 0
    assert engine.end(10).timings.cache_n == len(A) - 1


def test_slots_show_who_holds_them():
    engine = FakeEngine(n_rows=2)
    engine.submit(1, A, n=10, settings=b'{"seed":7}')
    engine.step()
    engine.core.slots(5)
    slots = engine.core.events.pop()
    busy = [s for s in slots.slots if s["is_processing"]]
    assert len(slots.slots) == 2 and len(busy) == 1
    assert busy[0]["id_task"] == 1 and busy[0]["params"] == {"seed": 7}


def test_metrics_count_each_token_once():
    engine = FakeEngine()
    engine.submit(1, A, n=5)
    engine.run()
    engine.submit(2, A, n=5)
    engine.run()
    engine.core.get_metrics(1, True)
    values = engine.core.events.pop().values
    assert values["prompt_tokens_total"] == len(A) + 1
    assert values["prompt_tokens_cached_total"] == len(A) - 1
    assert values["tokens_predicted_total"] == 10
    assert values["requests_processing"] == values["requests_deferred"] == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_happens_each_stream_is_a_prefix_of_the_models_text(data):
    """Random arrivals, cancels, failures and shortage of cells and RAM."""
    recurrent = data.draw(st.booleans())
    engine = FakeEngine(
        n_ctx=data.draw(st.integers(70, 300)),
        n_rows=data.draw(st.integers(1, 5)),
        n_batch=data.draw(st.sampled_from([1, 7, 64])),
        recurrent=recurrent,
        park_bytes=data.draw(st.sampled_from([0, 200, 1 << 20])),
        n_seqs=data.draw(st.integers(5, 8)),
        n_ctx_slot=70,
        quantum_ms=data.draw(st.sampled_from([5, 500])),
    )
    prompts: dict[int, list[int]] = {}
    cancelled = set()
    for request_id in range(data.draw(st.integers(1, 8))):
        shared = A[: data.draw(st.integers(0, len(A)))]
        prompt = [*shared, *data.draw(st.lists(st.integers(1, 47), min_size=1, max_size=12))]
        prompts[request_id] = prompt
        engine.submit(request_id, prompt, n=data.draw(st.integers(1, 40)))
        for _ in range(data.draw(st.integers(0, 6))):
            if data.draw(st.integers(0, 9)) == 0:
                engine.context.codes.append(data.draw(st.sampled_from([2, -2, -3])))
            if not engine.core.idle:
                engine.step()
        if data.draw(st.integers(0, 4)) == 0:
            victim = data.draw(st.sampled_from(sorted(prompts)))
            if not any(isinstance(e, Done | Failed) for e in engine.of(victim)):
                cancelled.add(victim)
            engine.cancel(victim)
    engine.context.codes.clear()
    engine.run()
    for request_id, prompt in prompts.items():
        tokens = engine.tokens(request_id)
        assert tokens == expected_tokens(prompt, len(tokens))
        ends = [e for e in engine.of(request_id) if isinstance(e, Done | Failed)]
        assert len(ends) == (request_id not in cancelled)


# ---- the queue -----------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    engine = FakeEngine(n_rows=1, n_spare=0, max_queue=2)
    engine.submit(1, range(1, 60), n=30)
    for _ in range(8):
        engine.step()  # it writes, and steps have been measured
    engine.submit(2, range(1, 20), n=4)
    engine.submit(3, range(1, 20), n=4)
    engine.submit(4, range(1, 20), n=4)
    refused = engine.end(4)
    assert isinstance(refused, Failed)
    assert (refused.code, refused.error_type) == (429, "rate_limit_error")
    assert refused.message == "the queue is full: 2 requests are waiting"
    assert 1.0 <= refused.retry_after_s < 60.0
    engine.run()
    assert [len(engine.tokens(i)) for i in (1, 2, 3, 4)] == [30, 4, 4, 0]
    engine.submit(5, range(1, 20), n=4)
    engine.run()
    assert len(engine.tokens(5)) == 4, "there is room again"


def test_prompts_are_read_before_there_is_a_row_for_them() -> None:
    engine = FakeEngine(n_ctx=4000, n_rows=1, n_spare=3, prefill_budget=16)
    engine.submit(1, [1, *range(2, 12)], n=40)
    while not engine.tokens(1):
        engine.step()
    for i in (2, 3, 4):
        engine.submit(i, [i, *range(2, 40)], n=5)
    before = engine.context.n_computed
    while engine.tokens(1) != expected_tokens([1, *range(2, 12)], 40):
        engine.step()
    read = engine.context.n_computed - before - 39
    assert read >= 3 * 38, "all but the last token of each was read meanwhile"
    assert not any(engine.tokens(i) for i in (2, 3, 4))
    start = engine.context.now
    engine.step()
    engine.step()
    assert engine.tokens(2), "so its first token comes at once"
    assert engine.context.now - start < 0.05
    engine.run()
    for i in (2, 3, 4):
        assert engine.tokens(i) == expected_tokens([i, *range(2, 40)], 5)


def test_prompts_that_leave_no_room_are_not_read_ahead() -> None:
    engine = FakeEngine(n_ctx=100, n_rows=1, n_spare=3, prefill_budget=16)
    engine.submit(1, [1, *range(2, 12)], n=50)
    engine.step()
    engine.submit(2, [2, *range(2, 80)], n=5)
    while len(engine.tokens(1)) < 20:
        engine.step()
    assert engine.scheduler.request(2).computed == 0
    engine.run()
    assert engine.tokens(1) == expected_tokens([1, *range(2, 12)], 50)
    assert engine.tokens(2) == expected_tokens([2, *range(2, 80)], 5)


# ---- what clients are told -----------------------------------------------------------------------


def test_who_waits_is_told_place_and_time_and_again_when_they_change() -> None:
    engine = FakeEngine(n_rows=1, n_spare=0)
    engine.submit(1, range(1, 60), n=60)
    for _ in range(10):
        engine.step()
    engine.submit(2, range(1, 30), n=8)
    engine.submit(3, range(1, 30), n=8)
    engine.run()
    told = {i: [e for e in engine.of(i) if isinstance(e, Queued)] for i in (2, 3)}
    assert (told[2][0].position, told[3][0].position) == (0, 1)
    assert told[3][-1].position in (-1, 0), "it moved up"
    for i in (2, 3):
        first = told[i][0]
        assert 0 < first.low_ms <= first.predicted_ttft_ms <= first.high_ms


def test_who_waits_is_shorter_once_another_has_read_what_it_begins_with():
    engine = FakeEngine(n_rows=1, n_spare=0, n_ctx=2000)
    prompt = list(range(1000, 1200))
    engine.submit(1, prompt, n=4)
    engine.step()
    engine.submit(2, list(range(5000, 5100)), n=4)
    engine.submit(3, [*prompt, 7], n=4)
    engine.run()
    ended = [e.request_id for e in engine.events if isinstance(e, Done)]
    assert ended == [1, 3, 2]


def test_an_ended_sequence_leaves_the_kv_cache_where_its_cells_cost_more_than_moving_it():
    for scanning_ms, stays in ((0.0, True), (1e-9, True), (10.0, False), (None, False)):
        engine = FakeEngine(n_ctx=3000)
        engine.scheduler.cost.scanning_ms = lambda cells, ms=scanning_ms: ms
        engine.submit(1, A * 20, n=4)
        engine.run()
        engine.submit(2, B * 20, n=4)
        engine.run()
        assert (engine.sequences.idle_tokens > len(B) * 20 + 4) == stays, scanning_ms
        engine.submit(3, [*A * 20, 7], n=4)
        engine.run()
        assert engine.end(3).timings.cache_n == len(A) * 20
