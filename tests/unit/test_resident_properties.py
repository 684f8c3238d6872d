"""Random use of the resident set, against a model that is a dictionary of lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from strata_plugin.checkpoints.resident import AllSequencesBusy, Placement, ResidentSet
from strata_plugin.checkpoints.tokens import Tokens
from strata_plugin.checkpoints.traits import PLAIN, WHOLE_ONLY, PrefixTraits

# few letters and long common beginnings, so that prompts meet often
prompts = st.builds(
    lambda shared, own: [7] * shared + own,
    st.integers(0, 40),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)
traits = st.sampled_from(
    [
        PLAIN,
        WHOLE_ONLY,
        PrefixTraits(can_cut=True, can_copy_prefix=False, can_copy_whole=False),
        PrefixTraits(can_cut=True, can_copy_prefix=True, can_copy_whole=True),
        PrefixTraits(can_cut=False, can_copy_prefix=False, can_copy_whole=False),
    ]
)


def array(tokens: list[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class ResidentMachine(RuleBasedStateMachine):
    """`held` is what the cache would hold, by sequence; `busy` who is being written to."""

    resident: ResidentSet

    @initialize(n_seqs=st.integers(1, 5), traits=traits)
    def start(self, n_seqs: int, traits: PrefixTraits) -> None:
        self.traits = traits
        self.resident = ResidentSet(n_seqs, traits)
        self.held: dict[int, list[int]] = {}
        self.busy: set[int] = set()
        self.last_used: dict[int, int] = {}
        self.clock = 0

    def touch(self, seq_id: int) -> None:
        self.clock += 1
        self.last_used[seq_id] = self.clock

    def idle(self) -> list[int]:
        return sorted(set(self.held) - self.busy, key=lambda seq_id: self.last_used[seq_id])

    @rule(prompt=prompts, data=st.data())
    def begin(self, prompt: list[int], data: st.DataObject) -> None:
        limit = data.draw(st.integers(0, len(prompt) - 1))
        veto = data.draw(st.sets(st.integers(0, 4), max_size=2))
        before = {seq_id: list(tokens) for seq_id, tokens in self.held.items()}
        if len(self.busy) == self.resident.n_seqs:
            with pytest.raises(AllSequencesBusy):
                self.resident.place(array(prompt), limit=limit)
            return
        placement = self.resident.place(
            array(prompt), limit=limit, usable=lambda seq_id, n: seq_id not in veto
        )
        self.check(placement, prompt, limit, veto)
        for seq_id in placement.evict:
            redundant = self.resident.redundant()
            assert seq_id in redundant or set(redundant) <= {placement.source}
            self.resident.forget(seq_id)
            del self.held[seq_id]
        if placement.source is not None:
            self.touch(placement.source)
        self.resident.begin(placement.seq_id, array(prompt[: placement.reuse]), placement.source)
        self.touch(placement.seq_id)
        self.held[placement.seq_id] = prompt[: placement.reuse]
        self.busy.add(placement.seq_id)
        if placement.source is not None:
            donor = self.resident.tokens(placement.source).tolist()
            assert donor == before[placement.source], "the donor changed"

    def check(self, p: Placement, prompt: list[int], limit: int, veto: set[int]) -> None:
        assert p.seq_id not in self.busy, "a busy sequence is to be written to"
        assert not self.busy.intersection(p.evict), "a busy sequence is to be forgotten"
        assert len(p.evict) <= 1 and set(p.evict) <= {p.seq_id}, "more is forgotten than needed"
        taken_over = p.reuse > 0 and p.source is None
        assert (p.seq_id in self.held) == (taken_over or bool(p.evict))
        if p.evict:
            assert len(self.held) == self.resident.n_seqs, "forgotten with sequences to spare"
        reuses = {s: self.reusable(s, prompt, limit) for s in self.held if s not in veto}
        if p.reuse:
            donor = p.seq_id if p.source is None else p.source
            assert p.reuse == reuses[donor] <= limit, "more is reused than is common"
            whole = p.reuse == len(self.held[donor])
            if p.source is None:
                assert whole or self.traits.can_cut
            else:
                assert p.source not in p.evict and p.source != p.seq_id
                assert self.traits.can_copy_whole if whole else self.traits.can_copy_prefix
        if self.traits.can_copy_prefix and self.traits.can_copy_whole:
            free = len(self.held) < self.resident.n_seqs or len(self.idle()) > 1
            best = max(reuses.values(), default=0)
            assert p.reuse == best or not free, f"{p.reuse} reused where {best} could be"

    def reusable(self, seq_id: int, prompt: list[int], limit: int) -> int:
        n = min(common(self.held[seq_id], prompt), limit)
        some = self.traits.can_cut or self.traits.can_copy_prefix
        return n if some or n == len(self.held[seq_id]) else 0

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), tokens=prompts)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.busy)))
        self.resident.extend(seq_id, array(tokens))
        self.held[seq_id] += tokens

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.busy)))
        redundant = self.resident.release(seq_id)
        self.busy.remove(seq_id)
        self.touch(seq_id)
        if not self.held[seq_id]:
            del self.held[seq_id]
        assert redundant == (seq_id in self.held and self.covered(seq_id))

    def covered(self, seq_id: int) -> bool:
        mine = self.held[seq_id]
        return any(
            other_id != seq_id
            and other[: len(mine)] == mine
            and (self.traits.every_prefix or (other == mine and other_id not in self.busy))
            for other_id, other in self.held.items()
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.held)))
        n = data.draw(st.integers(0, len(self.held[seq_id])))
        self.resident.truncate(seq_id, n)
        self.held[seq_id] = self.held[seq_id][:n]
        if not n and seq_id not in self.busy:
            del self.held[seq_id]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.held)))
        self.resident.forget(seq_id)
        del self.held[seq_id]
        self.busy.discard(seq_id)

    def teardown(self) -> None:
        """Forgetting redundant sequences one by one leaves what serves every prompt as well."""
        if not hasattr(self, "resident"):
            return
        for seq_id in sorted(self.busy):
            self.resident.release(seq_id)
        held = {s: self.resident.tokens(s).tolist() for s in self.resident.lru_idle()}
        while self.resident.redundant():
            self.resident.forget(self.resident.redundant()[0])
            self.resident.check_integrity()
        left = [self.resident.tokens(s).tolist() for s in self.resident.lru_idle()]
        for tokens in held.values():
            if self.traits.every_prefix:
                assert sum(other[: len(tokens)] == tokens for other in left) >= 1
            else:
                assert left.count(tokens) == 1

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "resident"):
            return
        self.resident.check_integrity()
        for seq_id in range(self.resident.n_seqs):
            held = self.held.get(seq_id, [])
            assert (seq_id in self.resident) == (seq_id in self.held)
            assert self.resident.is_busy(seq_id) == (seq_id in self.busy)
            assert self.resident.n_tokens(seq_id) == len(held)
            if seq_id in self.held:
                assert self.resident.tokens(seq_id).tolist() == held
        assert list(self.resident.lru_idle()) == self.idle()
        assert all(self.covered(seq_id) for seq_id in self.resident.redundant())
        assert sorted(self.resident.eviction_order()) == sorted(self.idle())


ResidentMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyUse = ResidentMachine.TestCase
