"""The disk tier of one engine: its own thread reads and writes, the step loop never waits.

An index of what lies in the folder is kept in memory, so that whether a prompt is there is known at
once. It knows the blocks of all models, since those are dropped to make room for others, but finds
only its own model's. What other servers add meanwhile is found once there is no room left.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from strata_plugin.checkpoints.blocks import Block, BlockMatch, BlockStore
from strata_plugin.checkpoints.disk import DiskFolder, Entry, Stored, Trouble
from strata_plugin.checkpoints.keys import Key, block_key, namespace
from strata_plugin.checkpoints.misses import Near
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.checkpoints.tokens import Tokens

from .transfer_rate import TransferRate

MOST_PENDING = 256 << 20  # bytes of blocks that wait to be written; more are not kept on disk
MOST_MEMO = 1 << 17

Loaded = list[Stored]
Open = Callable[[], tuple[DiskFolder, Key]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Read:
    root: Key
    tokens: Tokens
    known: int
    done: Callable[[Loaded], None]


class DiskTier:
    """Blocks on disk. `open_folder` runs in the thread, may take long, and gives the folder and the
    namespace of the model; OSError or ValueError mean that there will be no disk tier.
    """

    def __init__(
        self, open_folder: Open, block_tokens: int, *, only_checkpoints: bool = False
    ) -> None:
        self._open = open_folder
        self._folder: DiskFolder  # once it is open; the thread's alone
        self._gone: list[Key] = []  # dropped from the index, not from the folder yet
        self._index = BlockStore(
            RamParkingLot(1 << 62),
            block_tokens,
            lambda block: self._gone.append(block.key),
            only_checkpoints=only_checkpoints,
        )
        self._lock = threading.Condition()
        self._reads: deque[_Read] = deque()
        self._writes: deque[Block] = deque()
        self._pending = 0  # bytes of the writes
        self._done: list[Block] = []  # writes that are over, told by `written`
        self._writing = False
        self._memo: dict[Key, Key] = {}  # by a block's key in RAM: its key on disk
        self._model: Key | None = None  # None: not open (yet, or any more)
        self._over = False
        self._speed = TransferRate()  # of reads
        self._thread = threading.Thread(target=self._run, daemon=True, name="disk")
        self._thread.start()

    # ---- for the step loop -----------------------------------------------------------------------

    def find(self, root: Key, tokens: Tokens, limit: int) -> tuple[int, float]:
        """How many of the first `limit` tokens are on disk, and how long reading all of them should
        take, in ms (0: not known).
        """
        with self._lock:
            if self._model is None:
                return 0, 0.0
            match = self._index.longest(self._disk_root(root), tokens, limit)
            n_bytes = sum(block.room.n_bytes for block in match.blocks)
            return match.reuse, self._speed.predict(n_bytes)

    def nearest(self, root: Key, tokens: Tokens, most: int) -> Near:
        """As `BlockStore.nearest`, of what is on disk."""
        with self._lock:
            if self._model is None:
                return Near()
            return self._index.nearest(self._disk_root(root), tokens, most)

    def read(
        self, root: Key, tokens: Tokens, known: int, done: Callable[[Loaded], None]
    ) -> None:
        """Have the thread call `done` with the blocks of `tokens` beyond the first `known`, in
        order; with fewer, or none, where they can't be read.
        """
        with self._lock:
            self._reads.append(_Read(root, tokens.copy(), known, done))
            self._lock.notify_all()

    def write(self, block: Block) -> bool:
        """Have the thread write a block of the RAM tier; False where it has no time for that.

        Its state is used until `written` tells of it.
        """
        with self._lock:
            if self._over or self._pending + block.n_data > MOST_PENDING:
                return False
            self._writes.append(block)
            self._pending += block.n_data
            self._lock.notify_all()
            return True

    def erase(self, root: Key, tokens: Tokens) -> None:
        """Have the thread remove what is stored of `tokens` alone."""
        with self._lock:
            if self._model is not None:
                self._index.erase(self._disk_root(root), tokens)
                # nothing to read: the files of what was dropped go after each job
                self._reads.append(_Read(root, tokens[:0].copy(), 0, lambda loaded: None))
                self._lock.notify_all()

    def written(self) -> list[Block]:
        """Blocks that were written, or given up, since the last call."""
        with self._lock:
            done, self._done = self._done, []
            return done

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, as far as `timeout_s` allows, and end the thread."""
        self.wait_until_written(timeout_s)
        with self._lock:
            self._over = True
            self._lock.notify_all()
        self._thread.join(timeout_s)

    @property
    def is_open(self) -> bool:
        """Whether the folder can be used; not for some time after the start."""
        return self._model is not None

    def view(self) -> dict[str, Any]:
        """What GET /cache shows, but for hits. `bytes` are those of all blocks, without the index.
        """
        with self._lock:
            opened = self._model is not None
            return {
                "open": opened,
                "bytes": self._index.n_bytes,
                "limit_bytes": self._folder.limit_bytes if opened else 0,
                "blocks": len(self._index),
                "tokens": self._index.n_tokens,
                "evicted_blocks": self._index.n_evicted,
                "restore_bytes_per_s": self._speed.bytes_per_s,
            }

    def wait_until_open(self, timeout_s: float) -> bool:
        """Whether the folder can be used within `timeout_s`; waits no longer where it never can."""
        with self._lock:
            self._lock.wait_for(lambda: self._model is not None or self._over, timeout_s)
            return self._model is not None

    def wait_until_written(self, timeout_s: float) -> bool:
        """Whether all that was given to `write` is on disk, or dropped, within `timeout_s`."""
        with self._lock:
            return self._lock.wait_for(lambda: not (self._writes or self._writing), timeout_s)

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._folder, model = self._open()
            self._scan()
            with self._lock:
                self._model = model
                self._lock.notify_all()
            self._folder.remove_orphans()
            log.info(
                "prompts are kept in %s: %d blocks, at most %.1f GiB",
                self._folder.path, len(self._index), self._folder.limit_bytes / 2**30,
            )  # fmt: skip
        except (*Trouble, ValueError) as error:
            log.warning("prompts are not kept on disk: %s", error)
            with self._lock:
                self._over = True
                self._done += self._writes
                self._writes.clear()
                self._pending = 0
                self._lock.notify_all()
        while (job := self._next()) is not None:
            loaded: Loaded = []
            try:
                if isinstance(job, _Read):
                    loaded = self._read(job)
                else:
                    self._write(job)
                self._sweep()
            except Trouble as error:
                log.warning("the disk tier is in trouble: %s", error)
            if isinstance(job, _Read):
                job.done(loaded)
            else:
                with self._lock:
                    self._done.append(job)
        if self._model is not None:
            self._folder.close()

    def _next(self) -> _Read | Block | None:
        with self._lock:
            self._writing = False
            self._lock.notify_all()
            while True:
                if self._reads:
                    return self._reads.popleft()
                if self._over:
                    return None
                if self._writes:
                    self._writing = True
                    block = self._writes.popleft()
                    self._pending -= block.n_data
                    return block
                self._lock.wait()

    def _read(self, job: _Read) -> Loaded:
        with self._lock:
            if self._model is None:
                return []
            root, n = self._disk_root(job.root), len(job.tokens)
            match = self._index.longest(root, job.tokens, n)
            self._index.use(match)
        loaded: Loaded = []
        for block in match.blocks:
            if block.end <= job.known and block.rest is None:
                continue
            began = perf_counter()
            try:
                found = self._folder.read(block.key)
            except (*Trouble, MemoryError) as error:  # maybe it can be read another time
                log.warning("a block was not read from disk: %s", error or "no memory")
                break
            if found is None:
                self._forget(block)
                break
            loaded.append(found)
            self._speed.observe(block.room.n_bytes, (perf_counter() - began) * 1e3)
        return loaded

    def _write(self, block: Block) -> None:
        with self._lock:
            if self._model is None:
                return
            key = self._disk_key(block)
            root = self._disk_root(block.root)
            after = self._index.get(self._disk_key(block.parent)) if block.parent else None
            known = self._index.get(key) is not None
            if known or (block.parent is not None and after is None):
                return  # it is there, or would have nothing before it
        parent = after.key if after else root
        entry = Entry(
            key, parent, root, block.start, block.tokens,
            n_data=len(block.data),
            n_rest=None if block.rest is None else len(block.rest),
            cost_ms=block.cost_ms,
        )  # fmt: skip
        if self._stored(entry, block, after):
            with self._lock:
                self._list(entry, after)
            self._sweep()

    def _stored(self, entry: Entry, block: Block, after: Block | None) -> bool:
        if entry.n_file > self._folder.limit_bytes:
            return False
        scanned = False
        while not self._folder.write(entry, block.data, block.rest):
            if self._folder.has_room(entry):
                return False  # it is not for want of room
            with self._lock, self._index.pinned(BlockMatch((after,) if after else ())):
                dropped = self._index.drop_one()
            if dropped is not None:
                self._sweep()
            elif not scanned:
                scanned = True
                self._scan()  # what others wrote meanwhile
            else:
                return False
        return True

    def _scan(self) -> None:
        """List what lies in the folder and is not listed; what has lost its beginning goes."""
        found = sorted(self._folder.entries(), key=lambda e: (e.start, e.n_rest is not None))
        orphans = []
        with self._lock:
            for entry in found:
                after = self._index.get(entry.parent)
                if after is None and entry.parent != entry.root:
                    orphans.append(entry)
                elif self._index.get(entry.key) is None:
                    self._list(entry, after)
            for entry in sorted(found, key=lambda entry: entry.used):
                block = self._index.get(entry.key)
                if block is not None:
                    self._index.use(BlockMatch((block,)))
        self._gone += [entry.key for entry in orphans]
        self._sweep()

    def _sweep(self) -> None:
        """Remove the files of what was dropped from the index."""
        while self._gone:
            self._folder.remove(self._gone.pop())

    def _list(self, entry: Entry, after: Block | None) -> None:
        room = self._index.make_room(entry.n_file)
        assert room is not None, "the index has no limit of its own"
        rest = None if entry.n_rest is None else bytearray()
        self._index.put(room, entry.root, after, entry.tokens, bytearray(), entry.cost_ms, rest)

    def _forget(self, block: Block) -> None:
        with self._lock:
            if self._index.get(block.key) is block:
                self._index.drop(block)
        self._sweep()

    # ---- keys ------------------------------------------------------------------------------------

    def _disk_root(self, root: Key) -> Key:
        assert self._model is not None
        return namespace({"model": self._model.hex(), "root": root.hex()})

    def _disk_key(self, block: Block) -> Key:
        """The key on disk of a block in RAM."""
        path = []
        at: Block | None = block
        while at is not None and at.key not in self._memo:
            path.append(at)
            at = at.parent
        key = self._memo[at.key] if at is not None else self._disk_root(block.root)
        if len(self._memo) + len(path) > MOST_MEMO:
            self._memo.clear()
        for at in reversed(path):
            checkpoint = at.rest is not None
            key = self._memo[at.key] = block_key(key, at.tokens, checkpoint=checkpoint)
        return key
