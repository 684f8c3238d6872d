"""An answer that comes back as history is read as the very tokens that were sampled.

Text has more than one tokenisation, and a model does not always say the one that the tokeniser
makes of it. Then a prompt that repeats the answer word for word would leave what lies in the cache
in the middle of that answer, and all behind it would be computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_plugin.checkpoints.tokens import common_prefix

Tokens = NDArray[np.int32]

MOST_TOKENS = 4 << 20  # of all answers with their prompts
MOST_TURNS = 256
PIECES = 8  # tokens of a prompt that one sampled token may correspond to
MARK = b"\xff"  # begins the pieces of control tokens: no UTF-8 has it


class Turns:
    """The last answers, by who asked for them. `piece` gives the bytes of a token; those of control
    tokens must be like no text.
    """

    def __init__(self, piece: Callable[[int], bytes]):
        self._piece = piece
        self._turns: OrderedDict[int, tuple[str, Tokens, int]] = OrderedDict()
        self._count = 0
        self._n_tokens = 0

    def add(self, salt: str, prompt: Tokens, sampled: Tokens) -> None:
        """An answer has ended."""
        while len(sampled) and self._piece(int(sampled[-1])).startswith(MARK):
            sampled = sampled[:-1]  # its end: the template says it in its own way
        if not len(sampled):
            return
        tokens = np.concatenate((prompt, sampled)).astype(np.int32, copy=False)
        self._count += 1
        self._turns[self._count] = (salt, tokens, len(prompt))
        self._n_tokens += len(tokens)
        while self._n_tokens > MOST_TOKENS or len(self._turns) > MOST_TURNS:
            _, (_, oldest, _) = self._turns.popitem(last=False)
            self._n_tokens -= len(oldest)

    def replayed(self, salt: str, prompt: Tokens) -> Tokens:
        """`prompt` with its answers as they were sampled, as far as their text is the same."""
        for _ in range(MOST_TURNS):
            better = self._replay_one(salt, prompt)
            if better is None:
                break
            prompt = better
        return prompt

    def _replay_one(self, salt: str, prompt: Tokens) -> Tokens | None:
        """`prompt` with the answer as it was sampled in which it leaves what is known; None where
        there is no such answer, or its text is another.
        """
        nearest: Tokens | None = None
        longest = 0
        for whose, tokens, n_prompt in reversed(self._turns.values()):
            if whose != salt or len(tokens) <= longest:
                continue
            common = common_prefix(tokens, prompt)
            if n_prompt <= common < min(len(tokens), len(prompt)) and common > longest:
                nearest, longest = tokens, common
        if nearest is None:
            return None
        said, told = nearest[longest:], prompt[longest:]
        n_said, n_told = self._same_text(said, told[: PIECES * len(said)])
        if not n_said:
            return None
        return np.concatenate((prompt[:longest], said[:n_said], told[n_told:]))

    def _same_text(self, said: Tokens, told: Tokens) -> tuple[int, int]:
        """How many tokens of both have the same text, as many as there are."""
        texts, ends = [], []
        for tokens in (said, told):
            pieces = [self._piece(token) for token in tokens.tolist()]
            texts.append(np.frombuffer(b"".join(pieces), np.uint8).astype(np.int32))
            ends.append(np.cumsum([len(piece) for piece in pieces]))
        same = common_prefix(texts[0], texts[1])
        borders = np.intersect1d(ends[0][ends[0] <= same], ends[1][ends[1] <= same])
        if not len(borders):
            return 0, 0
        n_said, n_told = (int(np.searchsorted(e, borders[-1], side="right")) for e in ends)
        return n_said, n_told


def pieces_of(model: Any) -> Callable[[int], bytes]:
    """`Turns`'s `piece` for a model's vocabulary."""
    known: dict[int, bytes] = {}

    def piece(token: int) -> bytes:
        found = known.get(token)
        if found is None:
            control = model.is_control(token)
            found = b"%s%d%s" % (MARK, token, MARK) if control else model.piece(token)
            known[token] = found
        return found

    return piece
