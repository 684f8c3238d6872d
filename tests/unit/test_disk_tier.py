"""The disk tier behind an engine: what outlives it, what makes room, and who waits for whom."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata_plugin.checkpoints.disk import FORMAT, DiskFolder
from strata_plugin.checkpoints.keys import Key, namespace
from strata_plugin.engine.disk_tier import DiskTier
from strata_plugin.engine.messages import Done, Failed, Moved
from strata_server.cache_view import FIELDS, OWN, TIERS
from tests.unit.fake_engine import FakeEngine

MODEL, OTHER = namespace({"model": "a"}), namespace({"model": "b"})
BLOCK = 16


def prompt(n: int, start: int = 1000) -> list[int]:
    return list(range(start, start + n))


def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.002)
    raise AssertionError("it did not come about")


@contextmanager
def tier(
    path: Path, model: Key = MODEL, limit: int = 10 << 20, gate: threading.Event | None = None
) -> Iterator[DiskTier]:
    """A disk tier that is open; with a gate its reads wait for that."""

    class Gated(DiskFolder):
        def read(self, key: Key):  # type: ignore[no-untyped-def]
            assert gate is None or gate.wait(10)
            return super().read(key)

    disk = DiskTier(lambda: (Gated(path, limit), model), BLOCK)
    until(lambda: disk.is_open)
    yield disk
    disk.close()


def cached(engine: FakeEngine, request_id: int) -> int:
    done = engine.end(request_id)
    assert isinstance(done, Done)
    return done.timings.cache_n


def ask(engine: FakeEngine, request_id: int, tokens: list[int], **kw: object) -> int:
    """Cached tokens of a request that is run to its end."""
    engine.submit(request_id, tokens, n=4, **kw)
    engine.run()
    engine.rest()
    return cached(engine, request_id)


def test_what_was_read_outlives_the_engine(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        assert ask(engine, 1, prompt(200)) == 0
        answer = engine.tokens(1)
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        assert ask(engine, 2, prompt(200)) == 199
        assert engine.tokens(2) == answer
        assert Moved(2, "restoring") in engine.of(2)
        # also what was written to the answer, and a part of it
        assert ask(engine, 3, prompt(200) + answer + prompt(50, 5)) == 203
        assert ask(engine, 4, prompt(150) + prompt(50, 7)) == 150
    assert engine.context.n_computed < 150


def test_other_models_and_other_salts_find_nothing(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        ask(FakeEngine(disk=disk), 1, prompt(200), salt="mine")
    with tier(tmp_path) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(200), salt="yours") == 0
        assert ask(FakeEngine(disk=disk), 1, prompt(200)) == 0
        assert ask(FakeEngine(disk=disk), 1, prompt(200), lora=((0, 1.0),), salt="mine") == 0
    with tier(tmp_path, OTHER) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(200), salt="mine") == 0
    with tier(tmp_path) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(200), salt="mine") == 199


def test_the_limit_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    limit = 150_000
    with tier(tmp_path, limit=limit) as disk:
        engine = FakeEngine(disk=disk, n_ctx=2000)
        for number in range(1, 40):
            ask(engine, number, prompt(200, 1000 * number))
            if not number % 10:
                until(lambda: disk.wait_until_written(1))
            assert DiskFolder(tmp_path, limit).volume() <= limit
    with tier(tmp_path, limit=limit) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(200, 39_000)) == 199
        assert ask(FakeEngine(disk=disk), 1, prompt(200, 1000)) == 0
        assert disk.wait_until_written(10)
        files = list((tmp_path / f"blocks-{FORMAT}").glob("??/??/*.val"))
        assert 20 < len(files) == disk.view()["blocks"]


def test_blocks_of_other_models_and_servers_make_room_too(tmp_path: Path) -> None:
    limit = 120_000
    with tier(tmp_path, OTHER, limit) as theirs, tier(tmp_path, MODEL, limit) as disk:
        engine = FakeEngine(disk=theirs, n_ctx=2000)
        for number in range(1, 40):
            ask(engine, number, prompt(200, 1000 * number))
        until(lambda: theirs.wait_until_written(1))
        # this server does not know of them yet
        ask(FakeEngine(disk=disk), 1, prompt(200))
        until(lambda: disk.wait_until_written(1))
    with tier(tmp_path, MODEL, limit) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(200)) == 199


def test_a_damaged_block_ends_what_is_restored_and_the_rest_is_read(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        ask(engine, 1, prompt(200))
        answer = engine.tokens(1)
    for path in (tmp_path / f"blocks-{FORMAT}").glob("??/??/*.val"):
        raw = path.read_bytes()
        if prompt(200)[5 * BLOCK].to_bytes(4, "little") in raw[100:300]:
            path.write_bytes(raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:])
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        assert 0 < ask(engine, 1, prompt(200)) <= 5 * BLOCK
        assert engine.tokens(1) == answer
    with tier(tmp_path) as disk:  # and is there again afterwards
        assert ask(FakeEngine(disk=disk), 1, prompt(200)) == 199


def test_others_go_on_while_the_disk_is_read_and_a_cancel_counts(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        ask(engine, 1, prompt(200))
    gate = threading.Event()
    with tier(tmp_path, gate=gate) as disk:
        engine = FakeEngine(disk=disk)
        engine.submit(1, prompt(200), n=4)
        engine.submit(2, prompt(200), n=4)
        engine.submit(3, prompt(30, 7), n=4)
        while not (engine.of(3) and isinstance(engine.of(3)[-1], Done)):
            engine.step()
        engine.core.queue(9)
        engine._collect()
        shown = {r["id"]: r["stage"] for r in engine.events[-1].queue["requests"]}  # type: ignore
        assert shown == {"1": "restoring", "2": "restoring"}
        engine.cancel(1)
        gate.set()
        engine.run()
        assert cached(engine, 2) == 199
        assert not any(isinstance(event, Done | Failed) for event in engine.of(1))


def test_what_waits_to_be_written_counts_as_ram(tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(DiskFolder):
        def write(self, entry, data, rest=None):  # type: ignore[no-untyped-def]
            assert gate.wait(10)
            return super().write(entry, data, rest)

    disk = DiskTier(lambda: (Slow(tmp_path, 10 << 20), MODEL), BLOCK)
    until(lambda: disk.is_open)
    engine = FakeEngine(disk=disk, n_ctx=2000, park_bytes=20_000)  # for 17 blocks
    for number in range(1, 10):
        ask(engine, number, prompt(100, 1000 * number))
    # those that wait are what there is: nothing was dropped for others
    assert 0 < disk._pending <= 20_000
    store = engine.sequences._blocks.store  # type: ignore[union-attr]
    assert len(store) == len(disk._writes) + 1  # and the one that is being written
    gate.set()
    until(lambda: disk.wait_until_written(1))
    ask(engine, 10, prompt(100, 50_000))
    assert ask(engine, 11, prompt(100, 50_000)) == 99
    until(lambda: disk.wait_until_written(1))
    for block in disk.written():
        store.unpin(block)
    assert not any(block.pins for block in store._blocks.values())
    disk.close()
    with tier(tmp_path) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(100, 1000)) == 99


def test_forks_wait_for_the_blocks_of_their_parent(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        ask(engine, 1, prompt(200))
    for cancelled in (None, 1, 2):
        with tier(tmp_path) as disk:
            engine = FakeEngine(disk=disk)
            engine.submit(1, prompt(200), n=4)
            engine.submit(2, prompt(200), n=4, fork_of=1)
            if cancelled:
                engine.cancel(cancelled)
            engine.run()
            ended = [i for i in (1, 2) if engine.of(i) and isinstance(engine.of(i)[-1], Done)]
            assert ended == [i for i in (1, 2) if i != cancelled]
            assert engine.context.n_computed < 200 + 20 or cancelled == 1


def test_a_folder_in_trouble_turns_the_tier_off_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> tuple[DiskFolder, Key]:
        raise OSError("the disk is on fire")

    with caplog.at_level(logging.WARNING):
        disk = DiskTier(fails, BLOCK)
        engine = FakeEngine(disk=disk)
        assert ask(engine, 1, prompt(200)) == 0
        assert ask(engine, 2, prompt(200)) == 199
        disk.close()
    assert "prompts are not kept on disk: the disk is on fire" in caplog.text


def test_a_folder_that_cannot_be_made_turns_the_tier_off_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        disk = DiskTier(lambda: (DiskFolder(tmp_path / "file", 1 << 20), MODEL), BLOCK)
        engine = FakeEngine(disk=disk)
        assert ask(engine, 1, prompt(200)) == 0
        disk.close()
    assert "prompts are not kept on disk: cannot use" in caplog.text
    assert not disk.write(next(iter(engine.sequences._blocks.store._blocks.values())))  # type: ignore[union-attr]


def test_what_was_read_before_the_folder_was_open_is_kept_too(tmp_path: Path) -> None:
    slow = threading.Event()

    def later() -> tuple[DiskFolder, Key]:
        assert slow.wait(10)
        return DiskFolder(tmp_path, 10 << 20), MODEL

    disk = DiskTier(later, BLOCK)
    assert ask(FakeEngine(disk=disk), 1, prompt(200)) == 0
    slow.set()
    disk.close()
    with tier(tmp_path) as disk:
        assert ask(FakeEngine(disk=disk), 1, prompt(200)) == 199


def test_each_tier_tells_what_it_holds_and_what_it_was_good_for(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        ask(FakeEngine(disk=disk), 1, prompt(200))
    with tier(tmp_path) as disk:
        engine = FakeEngine(disk=disk)
        ask(engine, 1, prompt(200))
        ask(engine, 2, prompt(200))
        engine.core.cache(9, "")
        engine._collect()
        view = engine.events[-1].cache  # type: ignore[union-attr]
    assert set(view) == {*TIERS, *OWN}
    assert {name for tier_name in TIERS for name in view[tier_name]} == set(FIELDS)
    assert view["disk"]["open"] and view["disk"]["hit_tokens"] >= 199
    assert view["ram"]["hit_tokens"] == 199 and view["resident"]["hit_tokens"] == 199
    assert view["disk"]["tokens"] == view["ram"]["tokens"] >= 203
    assert view["disk"]["blocks"] == view["ram"]["blocks"] == 13


def test_what_can_not_be_read_just_now_stays(tmp_path: Path) -> None:
    with tier(tmp_path) as disk:
        ask(FakeEngine(disk=disk), 1, prompt(200))
    broken = True

    class Flaky(DiskFolder):
        def read(self, key, *, used=True):  # type: ignore[no-untyped-def]
            if broken:
                raise OSError(5, "Input/output error")
            return super().read(key, used=used)

    disk = DiskTier(lambda: (Flaky(tmp_path, 10 << 20), MODEL), BLOCK)
    until(lambda: disk.is_open)
    assert ask(FakeEngine(disk=disk), 1, prompt(200)) == 0
    broken = False
    assert ask(FakeEngine(disk=disk), 2, prompt(200)) == 199
    disk.close()


@pytest.mark.parametrize("scanning_ms", [0.0, None])
def test_more_than_ram_holds_comes_back_from_disk_one_after_another(
    tmp_path: Path, scanning_ms: float | None
) -> None:
    def engine(disk: DiskTier) -> FakeEngine:
        made = FakeEngine(disk=disk, n_ctx=2000, park_bytes=25_000)  # for 20 blocks of 16 tokens
        made.scheduler.cost.scanning_ms = lambda cells: scanning_ms  # type: ignore
        return made

    prompts = [prompt(250, 1000 * number) for number in range(1, 5)]
    with tier(tmp_path) as disk:
        first = engine(disk)
        for number, tokens in enumerate(prompts):
            ask(first, number, tokens)
            assert disk.wait_until_written(10)
    with tier(tmp_path) as disk:
        again = engine(disk)
        for number, tokens in enumerate(prompts):
            assert ask(again, number, [*tokens, 7]) == 250
            assert disk.wait_until_written(10)
