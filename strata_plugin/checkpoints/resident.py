"""Which sequences lie in the KV cache, what they hold, and which one serves a new prompt best.

Finished sequences stay as prefixes for later prompts. This is the book-keeping only: the caller
does to the KV cache what a `Placement` says, then reports it with `begin`, `extend`, `truncate`,
`release` and `forget`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .tokens import TokenBuffer, Tokens, common_prefix
from .traits import PrefixTraits, Usable

_HEAD = 16  # tokens of each sequence kept side by side, so that one comparison covers all


class AllSequencesBusy(Exception):
    """Every sequence id is being written to; wait until one is released."""


@dataclass(frozen=True)
class Placement:
    """How to start a prompt: forget `evict`, then compute from token `reuse` on in sequence
    `seq_id`.

    `reuse` > 0 without a source: `seq_id` is an idle resident sequence to be cut to `reuse` tokens.
    With a source: copy its first `reuse` tokens to `seq_id`, which is fresh. `reuse` == 0: `seq_id`
    is fresh.
    """

    seq_id: int
    reuse: int
    source: int | None = None
    evict: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Resident:
    tokens: TokenBuffer
    busy: bool
    used: int  # logical time of the last use
    covered_by: int | None = None  # idle only: a sequence that begins with all of this one's tokens


@dataclass(frozen=True, slots=True)
class _Candidate:
    seq_id: int
    reuse: int
    lossless: bool  # the prompt goes on where the sequence ends: taking it over loses nothing
    used: int


class ResidentSet:
    """Sequences 0 .. n_seqs - 1: each is fresh (not in the cache), busy (being written) or idle."""

    def __init__(self, n_seqs: int, traits: PrefixTraits) -> None:
        if n_seqs < 1:
            raise ValueError(f"n_seqs must be positive, got {n_seqs}")
        self.n_seqs = n_seqs
        self.traits = traits
        self._resident: dict[int, _Resident] = {}
        self._heads = np.zeros((n_seqs, _HEAD), dtype=np.int32)
        self._lengths = np.zeros(n_seqs, dtype=np.int64)
        self._clock = 0

    # ---- choosing --------------------------------------------------------------------------------

    def place(
        self,
        tokens: Tokens,
        *,
        limit: int,
        usable: Usable | None = None,
        keep: int | None = None,
    ) -> Placement:
        """Where a prompt goes, reusing the longest usable prefix; changes nothing.

        At most `limit` tokens are reused. Busy sequences are donors too. An idle one is taken over
        when that loses nothing or is the only way, else its prefix is copied, so that both
        conversations stay. `usable` may veto a prefix (None: all are valid). Where nothing is
        reused, the sequence `keep` is not evicted either. Raises AllSequencesBusy when no sequence
        can be written to.
        """
        for candidate in self._candidates(tokens, limit):
            if usable is None or usable(candidate.seq_id, candidate.reuse):
                placement = self._serve_from(candidate)
                if placement is not None:
                    return placement
        seq_id, evict = self._fresh(keep)
        if seq_id is None:
            raise AllSequencesBusy(f"all {self.n_seqs} sequences are busy")
        return Placement(seq_id, 0, evict=evict)

    def longest(self, tokens: Tokens, usable: Callable[[int], bool]) -> tuple[int | None, int]:
        """The sequence, among `usable` ones, that shares the longest prefix with `tokens`, busy or
        not, and how long that is.
        """
        best, shared = None, 0
        for seq_id, common in self._common_prefixes(tokens):
            if common > shared and usable(seq_id):
                best, shared = seq_id, common
        return best, shared

    def _candidates(self, tokens: Tokens, limit: int) -> list[_Candidate]:
        found = []
        for seq_id, common in self._common_prefixes(tokens):
            resident = self._resident[seq_id]
            reuse = min(common, limit)
            whole = reuse == len(resident.tokens)
            if reuse > 0 and (whole or self.traits.can_cut or self.traits.can_copy_prefix):
                lossless = not resident.busy and common == len(resident.tokens)
                found.append(_Candidate(seq_id, reuse, lossless, resident.used))
        found.sort(key=lambda c: (-c.reuse, not c.lossless, -c.used))
        return found

    def _common_prefixes(self, tokens: Tokens) -> list[tuple[int, int]]:
        """(sequence id, length) of all residents that share at least the first token."""
        head = tokens[:_HEAD]
        differs = self._heads[:, : len(head)] != head
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), len(head)) if len(head) else 0
        common = np.minimum(first, self._lengths)
        result = []
        for seq_id in np.flatnonzero(common).tolist():
            n = int(common[seq_id])
            if n == _HEAD:
                n = common_prefix(self._resident[seq_id].tokens.view(), tokens)
            result.append((seq_id, n))
        return result

    def _serve_from(self, c: _Candidate) -> Placement | None:
        """The placement that uses candidate `c`, None when its memory or a writer forbids it."""
        resident = self._resident[c.seq_id]
        whole = c.reuse == len(resident.tokens)
        can_take_over = not resident.busy and (whole or self.traits.can_cut)
        can_copy = self.traits.can_copy_whole if whole else self.traits.can_copy_prefix
        if c.lossless and can_take_over:
            return Placement(c.seq_id, c.reuse)
        seq_id, evict = self._fresh(keep=c.seq_id)
        if can_copy and seq_id is not None:
            return Placement(seq_id, c.reuse, c.seq_id, evict)
        # cutting loses a tail: not for a few tokens in common while there is another way
        worth_it = seq_id is None or 2 * c.reuse >= len(resident.tokens)
        return Placement(c.seq_id, c.reuse) if can_take_over and worth_it else None

    def _fresh(self, keep: int | None) -> tuple[int | None, tuple[int, ...]]:
        """A sequence id to start from nothing, and what must be forgotten for that; not `keep`."""
        for seq_id in range(self.n_seqs):
            if seq_id not in self._resident:
                return seq_id, ()
        for seq_id in self.eviction_order():
            if seq_id != keep:
                return seq_id, (seq_id,)
        return None, ()

    # ---- keeping up with the cache ---------------------------------------------------------------

    def begin(self, seq_id: int, tokens: Tokens, source: int | None = None) -> None:
        """`seq_id` is busy now and holds `tokens` (the reused prefix), copied from `source` if any.

        Raises ValueError when it is busy already.
        """
        self._check_id(seq_id)
        old = self._resident.get(seq_id)
        if old is not None and old.busy:
            raise ValueError(f"sequence {seq_id} is busy")
        if source is not None and source in self._resident:
            self._resident[source].used = self._tick()
        buffer = TokenBuffer(tokens)
        kept = common_prefix(old.tokens.view(), buffer.view()) if old is not None else 0
        self._resident[seq_id] = _Resident(buffer, busy=True, used=self._tick())
        self._note_head(seq_id)
        self._recheck_covered_by(seq_id, kept if self.traits.every_prefix else 0)

    def extend(self, seq_id: int, tokens: Tokens) -> None:
        """Tokens were computed at the end of a busy sequence."""
        resident = self._busy(seq_id)
        resident.tokens.extend(tokens)
        self._note_head(seq_id)

    def truncate(self, seq_id: int, n: int) -> None:
        """Only the first `n` tokens are still in the cache. ValueError when there are fewer.

        An idle sequence cut to nothing is forgotten.
        """
        resident = self._get(seq_id)
        resident.tokens.truncate(n)
        if not n and not resident.busy:
            self.forget(seq_id)
            return
        self._note_head(seq_id)
        if not resident.busy:
            resident.covered_by = self._find_cover(seq_id)
        self._recheck_covered_by(seq_id, n)

    def release(self, seq_id: int) -> bool:
        """A busy sequence is idle now and keeps its tokens; an empty one is forgotten.

        Returns whether another resident serves wherever this one would, so that it may go first.
        """
        resident = self._busy(seq_id)
        resident.busy = False
        resident.used = self._tick()
        if not len(resident.tokens):
            self.forget(seq_id)
            return False
        for other_id, common in self._common_prefixes(resident.tokens.view()):
            other = self._resident[other_id]
            if self._covers(other_id, seq_id, common):
                resident.covered_by = other_id
            elif not other.busy and self._covers(seq_id, other_id, common):
                other.covered_by = seq_id
        return resident.covered_by is not None

    def forget(self, seq_id: int) -> None:
        """A sequence, busy or idle, left the cache."""
        self._get(seq_id)
        del self._resident[seq_id]
        self._lengths[seq_id] = 0
        self._recheck_covered_by(seq_id)

    # ---- questions -------------------------------------------------------------------------------

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._resident

    def __len__(self) -> int:
        return len(self._resident)

    def is_busy(self, seq_id: int) -> bool:
        """Whether `seq_id` is being written to."""
        return seq_id in self._resident and self._resident[seq_id].busy

    def tokens(self, seq_id: int) -> Tokens:
        """Token ids that `seq_id` holds: a read-only view, valid until the sequence changes."""
        return self._get(seq_id).tokens.view()

    def n_tokens(self, seq_id: int) -> int:
        """Number of tokens that `seq_id` holds, 0 for a fresh one."""
        return int(self._lengths[seq_id])

    def lru_idle(self) -> tuple[int, ...]:
        """Idle sequences, the least recently used first."""
        idle = [(r.used, seq_id) for seq_id, r in self._resident.items() if not r.busy]
        return tuple(seq_id for _, seq_id in sorted(idle))

    def redundant(self) -> tuple[int, ...]:
        """Idle sequences that another resident can stand in for, the least recently used first.

        Look again after forgetting one: of equal sequences each makes the other redundant.
        """
        return tuple(s for s in self.lru_idle() if self._resident[s].covered_by is not None)

    def eviction_order(self) -> tuple[int, ...]:
        """Idle sequences in the order in which to forget them when room is short."""
        redundant = self.redundant()
        return redundant + tuple(s for s in self.lru_idle() if s not in redundant)

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        for seq_id in range(self.n_seqs):
            name = f"sequence {seq_id}"
            r = self._resident.get(seq_id)
            if r is None:
                assert self._lengths[seq_id] == 0, f"{name} is fresh but has a length"
                continue
            mine = r.tokens.view()
            assert self._lengths[seq_id] == len(mine), f"{name} has another length"
            n = min(len(mine), _HEAD)
            assert np.array_equal(self._heads[seq_id, :n], mine[:n]), f"{name} has another head"
            assert r.used <= self._clock, f"{name} was used in the future"
            assert r.busy or len(mine), f"{name} is idle and empty"
            if r.covered_by is not None:
                assert not r.busy, f"{name} is busy and called redundant"
                assert r.covered_by != seq_id, f"{name} is covered by itself"
                cover = self._resident.get(r.covered_by)
                assert cover is not None, f"{name} is covered by a fresh sequence"
                common = common_prefix(mine, cover.tokens.view())
                assert self._covers(r.covered_by, seq_id, common), f"{name} is uncovered"
        assert all(0 <= seq_id < self.n_seqs for seq_id in self._resident), "unknown sequence id"
        used = [r.used for r in self._resident.values()]
        assert len(set(used)) == len(used), "two sequences were used at the same time"

    # ---- inside ----------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _check_id(self, seq_id: int) -> None:
        if not 0 <= seq_id < self.n_seqs:
            raise ValueError(f"no sequence {seq_id}: there are {self.n_seqs}")

    def _get(self, seq_id: int) -> _Resident:
        resident = self._resident.get(seq_id)
        if resident is None:
            raise ValueError(f"sequence {seq_id} is not resident")
        return resident

    def _busy(self, seq_id: int) -> _Resident:
        resident = self._get(seq_id)
        if not resident.busy:
            raise ValueError(f"sequence {seq_id} is not busy")
        return resident

    def _note_head(self, seq_id: int) -> None:
        head = self._resident[seq_id].tokens.view()[:_HEAD]
        self._heads[seq_id, : len(head)] = head
        self._lengths[seq_id] = len(self._resident[seq_id].tokens)

    def _covers(self, cover_id: int, seq_id: int, common: int) -> bool:
        """Whether `cover_id` can stand in for `seq_id`, with which it shares `common` tokens."""
        if cover_id == seq_id or common != self._lengths[seq_id]:
            return False
        if self.traits.every_prefix:
            return True
        # one that is written to will not stay equal
        return common == self._lengths[cover_id] and not self._resident[cover_id].busy

    def _find_cover(self, seq_id: int) -> int | None:
        shared = self._common_prefixes(self.tokens(seq_id))
        return next((other for other, n in shared if self._covers(other, seq_id, n)), None)

    def _recheck_covered_by(self, seq_id: int, n: int = 0) -> None:
        """`seq_id` keeps only its first `n` tokens: find other covers for what it covered."""
        for other_id, other in self._resident.items():
            if other.covered_by == seq_id and len(other.tokens) > n:
                other.covered_by = self._find_cover(other_id)
