"""Which sequence serves a prompt, scene by scene."""

from __future__ import annotations

import numpy as np
import pytest

from strata_plugin.checkpoints.resident import AllSequencesBusy, Placement, ResidentSet
from strata_plugin.checkpoints.tokens import TokenBuffer, Tokens, common_prefix
from strata_plugin.checkpoints.traits import PLAIN, WHOLE_ONLY, PrefixTraits

CUT_ONLY = PrefixTraits(can_cut=True, can_copy_prefix=False, can_copy_whole=False)


def tok(*ids: int) -> Tokens:
    return np.array(ids, dtype=np.int32)


def text(letters: str) -> Tokens:
    return np.array([ord(letter) for letter in letters], dtype=np.int32)


def resident(
    idle: dict[int, str], busy: dict[int, str] | None = None, *, n: int = 4, traits: object = PLAIN
) -> ResidentSet:
    """A set that holds these texts; the first is the one used longest ago."""
    assert isinstance(traits, PrefixTraits)
    held = ResidentSet(n, traits)
    for seq_id, letters in idle.items():
        held.begin(seq_id, text(letters))
        held.release(seq_id)
    for seq_id, letters in (busy or {}).items():
        held.begin(seq_id, text(letters))
    held.check_integrity()
    return held


def place(held: ResidentSet, prompt: str, limit: int | None = None) -> Placement:
    return held.place(text(prompt), limit=len(prompt) - 1 if limit is None else limit)


# ---- plain memory --------------------------------------------------------------------------------


def test_the_first_prompt_gets_a_fresh_sequence() -> None:
    assert place(resident({}), "abc") == Placement(0, 0)


def test_a_prompt_that_goes_on_takes_the_sequence_over() -> None:
    assert place(resident({2: "abc"}), "abcdef") == Placement(2, 3)


def test_a_prompt_that_branches_off_copies_so_that_the_donor_survives() -> None:
    assert place(resident({0: "system A"}), "system B") == Placement(1, 7, source=0)


def test_a_busy_sequence_is_a_donor() -> None:
    held = resident({}, busy={0: "system A"})
    assert place(held, "system A and more") == Placement(1, 8, source=0)


def test_the_longest_common_prefix_wins() -> None:
    held = resident({0: "abx", 1: "abcdx", 2: "abcx"})
    assert place(held, "abcdef") == Placement(3, 4, source=1)


def test_of_equal_prefixes_that_is_taken_which_costs_nothing() -> None:
    held = resident({0: "abcx", 1: "abc", 2: "abcy"})
    assert place(held, "abcdef") == Placement(1, 3)
    held = resident({0: "abc"}, busy={1: "abc"})
    assert place(held, "abcdef") == Placement(0, 3)


def test_no_more_than_the_limit_is_reused() -> None:
    held = resident({0: "abcdef"})
    assert place(held, "abcdef", limit=5) == Placement(0, 5)
    assert place(held, "abcdef", limit=0) == Placement(1, 0)


def test_a_prompt_inside_a_longer_conversation_leaves_that_alone() -> None:
    assert place(resident({0: "abcdef"}), "abcd", limit=3) == Placement(1, 3, source=0)


def test_without_a_free_sequence_the_one_used_longest_ago_goes() -> None:
    held = resident({0: "one", 1: "two", 2: "xyz", 3: "four"})
    assert place(held, "new") == Placement(0, 0, evict=(0,))
    assert place(held, "xyA") == Placement(0, 2, source=2, evict=(0,))


def test_the_donor_itself_does_not_make_room_for_its_copy() -> None:
    held = resident({0: "xyz", 1: "two"}, n=2)
    assert place(held, "xyA") == Placement(1, 2, source=0, evict=(1,))


def test_the_donor_is_cut_where_it_is_the_only_idle_one() -> None:
    held = resident({0: "xyz"}, busy={1: "two"}, n=2)
    assert place(held, "xyA") == Placement(0, 2)


def test_a_busy_donor_is_no_help_without_a_sequence_to_copy_to() -> None:
    held = resident({0: "abc"}, busy={1: "xyz"}, n=2)
    assert place(held, "xyA") == Placement(0, 2, source=1, evict=(0,))
    held.begin(0, tok(1))
    with pytest.raises(AllSequencesBusy, match="all 2 sequences are busy"):
        place(held, "xyA")


def test_a_redundant_sequence_goes_before_older_ones() -> None:
    held = resident({0: "other", 1: "abcdef", 2: "abc"}, n=3)
    assert held.redundant() == (2,)
    assert held.eviction_order() == (2, 0, 1)
    assert place(held, "new") == Placement(2, 0, evict=(2,))


# ---- redundancy ----------------------------------------------------------------------------------


def test_releasing_says_whether_another_sequence_holds_all_of_it() -> None:
    held = resident({0: "abcd"}, busy={1: "abc", 2: "abx"})
    assert held.release(1)
    assert not held.release(2)


def test_a_sequence_becomes_redundant_when_a_longer_one_is_released() -> None:
    held = resident({0: "abc"}, busy={1: "abcdef"})
    assert held.redundant() == ()
    assert not held.release(1)
    assert held.redundant() == (0,)


def test_a_sequence_is_not_redundant_any_more_when_its_cover_goes_or_shrinks() -> None:
    for change in ("forget", "truncate", "begin"):
        held = resident({0: "abcdef", 1: "abc"})
        assert held.redundant() == (1,)
        if change == "forget":
            held.forget(0)
        elif change == "truncate":
            held.truncate(0, 2)
        else:
            held.begin(0, text("ab"))
        held.check_integrity()
        assert held.redundant() == ((0,) if change == "truncate" else ()), change


def test_a_cover_that_shrinks_or_grows_beyond_stays_a_cover() -> None:
    held = resident({0: "abcdef", 1: "abc"})
    held.truncate(0, 4)
    held.begin(0, text("abcd"))
    held.extend(0, text("xyz"))
    held.check_integrity()
    assert held.redundant() == (1,)


def test_what_covered_the_cover_covers() -> None:
    held = resident({0: "abcdef", 1: "abcd", 2: "abc"})
    held.begin(3, text("abcde"))
    assert held.release(3)
    held.forget(0)
    held.check_integrity()
    assert 2 in held.redundant()


def test_of_equal_sequences_one_stays() -> None:
    held = resident({0: "abc"}, busy={1: "abc", 2: "abc"})
    held.release(1)
    held.release(2)
    while held.redundant():
        held.forget(held.redundant()[0])
        held.check_integrity()
    assert len(held) == 1


# ---- other memories ------------------------------------------------------------------------------


def test_memory_of_whole_sequences_reuses_only_whole_sequences() -> None:
    held = resident({0: "abcd", 1: "ab"}, traits=WHOLE_ONLY)
    assert place(held, "abcx") == Placement(1, 2)
    assert place(held, "abcde") == Placement(0, 4)
    assert place(held, "abcd", limit=3) == Placement(1, 2), "the end of the prompt is not known"
    assert place(held, "ax") == Placement(2, 0)


def test_memory_of_whole_sequences_copies_a_busy_one() -> None:
    held = resident({}, busy={0: "abcd"}, traits=WHOLE_ONLY)
    assert place(held, "abcdef") == Placement(1, 4, source=0)


def test_a_shorter_whole_state_is_not_redundant_but_an_equal_one_is() -> None:
    held = resident({0: "abcd", 1: "ab"}, busy={2: "abcd"}, traits=WHOLE_ONLY)
    assert held.redundant() == ()
    assert held.release(2)
    held.begin(0, text("abcd"))
    assert held.redundant() == (), "one that is written to does not stay equal"


def test_memory_that_cannot_copy_cuts_the_donor_instead() -> None:
    held = resident({0: "abcd"}, busy={1: "abcef"}, traits=CUT_ONLY)
    assert place(held, "abcef") == Placement(0, 3)


def test_a_conversation_is_not_cut_for_the_few_tokens_that_all_prompts_share() -> None:
    held = resident({0: "abcdefgh"}, n=2, traits=CUT_ONLY)
    assert place(held, "abcxyz") == Placement(1, 0)
    held.begin(1, text("z"))
    assert place(held, "abcxyz") == Placement(0, 3), "it would have to go anyway"


def test_a_prefix_that_is_not_usable_is_passed_over_for_a_shorter_one() -> None:
    held = resident({0: "abcdX", 1: "abY"})
    asked = []

    def usable(seq_id: int, n: int) -> bool:
        asked.append((seq_id, n))
        return seq_id == 1

    assert held.place(text("abcde"), limit=4, usable=usable) == Placement(2, 2, source=1)
    assert asked == [(0, 4), (1, 2)]


# ---- book-keeping --------------------------------------------------------------------------------


def test_tokens_are_kept_through_a_sequences_life() -> None:
    held = ResidentSet(2, PLAIN)
    assert (0 in held, held.n_tokens(0)) == (False, 0)
    held.begin(0, text("ab"))
    held.extend(0, text("cd"))
    held.extend(0, text("efghijklmnopqrstuvwxyz" * 100))
    held.truncate(0, 5)
    assert held.is_busy(0)
    assert held.tokens(0).tolist() == text("abcde").tolist()
    with pytest.raises(ValueError, match="read-only"):
        held.tokens(0)[0] = 1
    held.release(0)
    assert (held.is_busy(0), held.n_tokens(0)) == (False, 5)
    held.forget(0)
    assert 0 not in held
    held.check_integrity()


def test_the_callers_array_and_the_sets_own_are_apart() -> None:
    mine = tok(1, 2, 3)
    held = ResidentSet(1, PLAIN)
    held.begin(0, mine)
    mine[0] = 9
    assert held.tokens(0).tolist() == [1, 2, 3]


def test_an_empty_sequence_is_forgotten_when_nobody_writes_to_it() -> None:
    held = resident({1: "abc"}, busy={0: ""})
    held.release(0)
    held.truncate(1, 0)
    held.check_integrity()
    assert len(held) == 0


def test_use_as_a_donor_counts_as_use() -> None:
    held = resident({0: "abc", 1: "def"})
    held.begin(2, text("ab"), source=0)
    assert held.lru_idle() == (1, 0)


def test_wrong_calls_are_refused() -> None:
    held = resident({0: "abc"}, busy={1: "def"})
    with pytest.raises(ValueError, match="sequence 1 is busy"):
        held.begin(1, text("x"))
    with pytest.raises(ValueError, match="no sequence 4"):
        held.begin(4, text("x"))
    with pytest.raises(ValueError, match="sequence 0 is not busy"):
        held.extend(0, text("x"))
    with pytest.raises(ValueError, match="not busy"):
        held.release(0)
    with pytest.raises(ValueError, match="not resident"):
        held.forget(3)
    with pytest.raises(ValueError, match="can't cut 3 tokens to 4"):
        held.truncate(0, 4)
    with pytest.raises(ValueError, match="flat"):
        held.begin(2, np.zeros((2, 2), dtype=np.int32))
    with pytest.raises(ValueError, match="n_seqs"):
        ResidentSet(0, PLAIN)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 255, 256, 257, 1279, 1280, 1281, 300_000])
def test_the_common_prefix_is_exact_around_chunk_borders(n: int) -> None:
    a = np.arange(n + 3, dtype=np.int32)
    b = a.copy()
    b[n] = -1
    assert common_prefix(a, b) == n
    assert common_prefix(a[:n], a) == n
    held = ResidentSet(2, PLAIN)
    held.begin(0, b)
    assert held.place(a, limit=n + 2).reuse == n


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_buffer_grows_without_losing_tokens(n: int) -> None:
    buffer = TokenBuffer(tok())
    for i in range(1000):
        buffer.extend(np.full(n, i, dtype=np.int32))
        assert len(buffer) == (i + 1) * n
    assert buffer.view().tolist() == [i for i in range(1000) for _ in range(n)]


def test_the_integrity_check_finds_a_wrong_cover() -> None:
    held = resident({0: "abcdef", 1: "abc"})
    held.check_integrity()
    held._resident[1].covered_by = 3
    with pytest.raises(AssertionError, match="covered by a fresh"):
        held.check_integrity()
