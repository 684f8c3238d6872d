"""What a step costs: learnt from the steps themselves, all the time.

Two layers. A fit of few physical costs (a pass over the weights, a token, a row's logits, cells
scanned by attention) says what has never been seen. A table of what was measured, by number of
tokens and of cells, corrects it: step times are full of corners (batch sizes that kernels like or
don't like, flash attention that loses at depth) which no formula knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, log2
from typing import Any, NamedTuple, Protocol

FORMAT = 1  # of the saved form
SHORTEST_MS, LONGEST_MS = 1e-3, 1e8  # steps that took less, or more (a day), are not believed


class StepShape(NamedTuple):
    """What makes a step long.

    `rows` are sampled rows with one token each, `prompt_tokens` are read besides. `cells` is how
    far the KV cache is filled, `pairs` the sum over all tokens of the depth of their own sequence.
    """

    rows: int
    prompt_tokens: int
    cells: int
    pairs: float

    @property
    def tokens(self) -> int:
        """All tokens of the step."""
        return self.rows + self.prompt_tokens


class CostModel(Protocol):
    """Predicts steps; what learns, learns by `observe`."""

    def predict(self, shape: StepShape) -> float:
        """Milliseconds that a step of this shape takes."""

    def spread(self, shape: StepShape) -> float:
        """How sure that is: standard deviation of the logarithm of actual / predicted."""

    def scanning_ms(self, cells: int) -> float | None:
        """Milliseconds that `cells` more KV cells, of others, add to the step of one row; None
        where that is not known.
        """

    def knows(self, tokens: int) -> bool:
        """Whether steps of about this many tokens, or of more, have been measured."""

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        """Learn from a step."""


@dataclass(frozen=True)
class AnalyticCost:
    """A machine described by two figures, for simulations: fixed time per pass, time per token.

    `attention_ms` is the time per token and thousand tokens of its own depth.
    """

    pass_ms: float
    token_ms: float
    attention_ms: float = 0.0
    n_ubatch: int = 512

    def predict(self, shape: StepShape) -> float:
        """Milliseconds; rows ride on the pass, prompt tokens pay."""
        passes = -(-shape.tokens // self.n_ubatch)
        computed = shape.prompt_tokens * self.token_ms + shape.pairs / 1e3 * self.attention_ms
        return max(passes * self.pass_ms, self.pass_ms * 0.25 + computed)

    def spread(self, shape: StepShape) -> float:
        """It is what it is."""
        return 0.0

    def scanning_ms(self, cells: int) -> float | None:
        """It knows of no others."""
        return None

    def knows(self, tokens: int) -> bool:
        """Always."""
        return True

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        """It does not learn."""


@dataclass(frozen=True)
class Fixed:
    """A model as it is now: predicts, does not learn."""

    model: CostModel

    def predict(self, shape: StepShape) -> float:
        """As the model."""
        return self.model.predict(shape)

    def spread(self, shape: StepShape) -> float:
        """As the model."""
        return self.model.spread(shape)

    def scanning_ms(self, cells: int) -> float | None:
        """As the model."""
        return self.model.scanning_ms(cells)

    def knows(self, tokens: int) -> bool:
        """As the model."""
        return self.model.knows(tokens)

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        """Learns nothing."""


def reading_ms(cost: CostModel, start: int, n: int) -> float:
    """Milliseconds that reading `n` tokens of a prompt from position `start` on would take alone;
    0 while nothing was measured.
    """
    return cost.predict(StepShape(0, n, start + n, n * (start + n / 2)))


@dataclass(slots=True)
class _Bucket:
    """Steps of about one shape: running means; `log_ms` is of the logarithm of milliseconds."""

    features: list[float]
    log_ms: float
    spread: float = 0.3
    n: float = 0.0
    far_off: int = 0  # steps in a row that were far off on the same side
    residual: float = 0.0  # log of measured / fitted, as of the last fit


_Key = tuple[bool, int, int]  # rows and prompt tokens mixed, tokens (half octaves), cells (octaves)
_N_FEATURES = 6


@dataclass
class LearnedCost:
    """The cost model of one engine. `n_ubatch`: tokens of a pass over the weights."""

    n_ubatch: int
    _buckets: dict[_Key, _Bucket] = field(default_factory=dict)
    _coefficients: list[float] = field(default_factory=lambda: [0.0] * _N_FEATURES)
    _by_tokens: dict[int, float] = field(default_factory=dict)  # residuals, whatever the cells
    _most_tokens: int = 0
    _stale: int = 0  # observations since the last fit

    _RATE = 0.12  # weight of a new step in its bucket, once that holds some
    _FAR_OFF = 0.7  # logarithm; a step farther off counts as this much
    _NEW_TRUTH = 3  # steps in a row, far off on the same side, that are believed
    _REFIT = 8  # observations between two fits, once much is known
    _UNKNOWN = 0.35  # spread where nothing was measured
    _NEAR = 3.0  # buckets count fully after as many steps

    # ---- questions -------------------------------------------------------------------------------

    @property
    def n_shapes(self) -> int:
        """Number of different step shapes that were measured."""
        return len(self._buckets)

    def knows(self, tokens: int) -> bool:
        """Whether steps of about this many tokens, or of more, have been measured."""
        return tokens <= 1.5 * self._most_tokens

    def predict(self, shape: StepShape) -> float:
        """Milliseconds that a step of this shape takes; 0 while nothing was measured."""
        tokens = shape.tokens
        if not self._buckets or tokens < 1:
            return 0.0
        full, rest = divmod(tokens, self.n_ubatch)
        total = 0.0
        if full:
            total += full * self._one_pass(shape, self.n_ubatch, 0 if rest else shape.rows)
        if rest:
            total += self._one_pass(shape, rest, shape.rows)
        return total

    def scanning_ms(self, cells: int) -> float | None:
        """Milliseconds that `cells` more KV cells, of others, add to the step of one row; None
        while too little was measured to tell.
        """
        return self._coefficients[3] * cells / 1e3 if self.n_shapes > _N_FEATURES else None

    def spread(self, shape: StepShape) -> float:
        """Standard deviation of the logarithm of actual / predicted."""
        bucket = self._buckets.get(self._key(shape))
        if bucket is None:
            return self._UNKNOWN
        doubt = 1.0 / (1.0 + bucket.n)
        return bucket.spread * (1.0 - doubt) + self._UNKNOWN * doubt

    def _one_pass(self, shape: StepShape, tokens: int, outputs: int) -> float:
        mixed = bool(shape.rows and shape.prompt_tokens)
        share = tokens / shape.tokens
        c = self._coefficients
        cells = shape.cells / 1e3
        fitted = (
            c[0]
            + c[1] * tokens
            + c[2] * outputs
            + c[3] * tokens * cells
            + c[4] * shape.pairs * share / 1e3
            + (c[5] if mixed else 0.0)
        )
        return max(fitted, 1e-3) * exp(self._correction(mixed, tokens, shape.cells))

    def _correction(self, mixed: bool, tokens: int, cells: int) -> float:
        at = 2.0 * log2(tokens)
        i = int(at)
        w = at - i
        j = _cells_octave(cells)
        if w == 0.0 or not self._measured(mixed, i + 1, j):
            return self._residual(mixed, i, j)
        high = self._residual(mixed, i + 1, j)
        if not self._measured(mixed, i, j):
            return high
        return self._residual(mixed, i, j) * (1.0 - w) + high * w

    def _measured(self, mixed: bool, i: int, j: int) -> bool:
        return (mixed, i, j) in self._buckets or i in self._by_tokens

    def _residual(self, mixed: bool, i: int, j: int) -> float:
        bucket = self._buckets.get((mixed, i, j))
        shared = self._by_tokens.get(i, 0.0)
        if bucket is None:
            return shared
        weight = min(1.0, bucket.n / self._NEAR)
        return bucket.residual * weight + shared * (1.0 - weight)

    def _key(self, shape: StepShape) -> _Key:
        tokens = min(shape.tokens, self.n_ubatch)
        mixed = bool(shape.rows and shape.prompt_tokens)
        return mixed, round(2.0 * log2(tokens)), _cells_octave(shape.cells)

    # ---- learning --------------------------------------------------------------------------------

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        """Learn from a step; one without tokens or without a sensible time says nothing."""
        if shape.tokens < 1 or not SHORTEST_MS <= elapsed_ms <= LONGEST_MS:
            return
        passes = -(-shape.tokens // self.n_ubatch)
        features = [x / passes for x in _features(shape, passes)]  # of a pass: what buckets hold
        value = log(elapsed_ms / passes)
        key = self._key(shape)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = bucket = _Bucket(features, value)
        self._add(bucket, features, value)
        self._most_tokens = max(self._most_tokens, shape.tokens)
        self._stale += 1
        if self._stale >= (1 if bucket.n <= self._NEAR else self._REFIT):
            self._fit()
        else:
            self._correct(bucket)

    def _add(self, bucket: _Bucket, features: list[float], value: float) -> None:
        bucket.n += 1.0
        # what is expected at these features, judged by the bucket's middle
        expected = bucket.log_ms + log(
            max(self._fitted(features), 1e-3) / max(self._fitted(bucket.features), 1e-3)
        )
        error = value - expected
        side = (error > self._FAR_OFF) - (error < -self._FAR_OFF)
        bucket.far_off = bucket.far_off + side if side * bucket.far_off > 0 else side
        if bucket.n > self._NEAR and abs(bucket.far_off) < self._NEW_TRUTH:
            error = max(-self._FAR_OFF, min(self._FAR_OFF, error))
        elif bucket.far_off:
            bucket.n = 1.0  # a new truth: the old steps are forgotten
            bucket.far_off = 0
        rate = max(1.0 / bucket.n, self._RATE)
        bucket.log_ms += error * rate
        bucket.spread += 0.1 * (abs(error) - bucket.spread)
        pairs = zip(bucket.features, features, strict=True)
        moved = [old + rate * (new - old) for old, new in pairs]
        bucket.log_ms += log(
            max(self._fitted(moved), 1e-3) / max(self._fitted(bucket.features), 1e-3)
        )
        bucket.features = moved

    def _fitted(self, features: list[float]) -> float:
        return sum(c * x for c, x in zip(self._coefficients, features, strict=True)) or 1.0

    def _fit(self) -> None:
        """Least squares of relative errors over the buckets, without negative costs."""
        self._stale = 0
        n = _N_FEATURES
        a = [[0.0] * n for _ in range(n)]
        b = [0.0] * n
        for bucket in self._buckets.values():
            weight = min(1.0, bucket.n / self._NEAR)
            scale = exp(-bucket.log_ms)
            x = [value * scale for value in bucket.features]
            for i in range(n):
                if x[i]:
                    w = weight * x[i]
                    b[i] += w
                    row = a[i]
                    for j in range(n):
                        row[j] += w * x[j]
        c = self._coefficients
        for _ in range(60):
            moved = 0.0
            for i in range(n):
                if a[i][i] <= 0.0:
                    continue
                # a touch of ridge: of two costs that always come together each takes its part
                ridge = 0.003 * a[i][i]
                gradient = b[i] - sum(map(_times, a[i], c)) - ridge * c[i]
                new = max(0.0, c[i] + gradient / (a[i][i] + ridge))
                moved = max(moved, abs(new - c[i]) / (c[i] + 1e-9))
                c[i] = new
            if moved < 1e-3:
                break
        for bucket in self._buckets.values():
            self._correct(bucket)
        sums: dict[int, tuple[float, float]] = {}
        for (_, i, _), bucket in self._buckets.items():
            weight = min(1.0, bucket.n / self._NEAR)
            total, count = sums.get(i, (0.0, 0.0))
            sums[i] = (total + weight * bucket.residual, count + weight)
        self._by_tokens = {i: total / max(1.0, count) for i, (total, count) in sums.items()}

    def _correct(self, bucket: _Bucket) -> None:
        bucket.residual = bucket.log_ms - log(max(self._fitted(bucket.features), 1e-3))

    # ---- keeping ---------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """A JSON object that `load` takes."""
        return {
            "format": FORMAT,
            "n_ubatch": self.n_ubatch,
            "most_tokens": self._most_tokens,
            "buckets": [
                [*key, bucket.features, bucket.log_ms, bucket.spread, bucket.n]
                for key, bucket in self._buckets.items()
            ],
        }

    def load(self, data: Any) -> None:
        """Take over what `saved` returned. Raises ValueError for anything else and changes nothing
        then. What was measured earlier counts little against new steps.
        """
        try:
            if data["format"] != FORMAT or data["n_ubatch"] != self.n_ubatch:
                raise ValueError("a cost model of another format or for other micro-batches")
            most_tokens = int(_figure(data["most_tokens"], 1, 1e9))
            buckets = dict(map(_loaded, data["buckets"]))
        except (LookupError, TypeError, ValueError) as e:
            raise ValueError(f"not a cost model of ours: {e}") from e
        if not buckets:
            raise ValueError("an empty cost model")
        self._buckets, self._most_tokens = buckets, most_tokens
        self._coefficients = [0.0] * _N_FEATURES
        self._fit()


def _loaded(saved: Any) -> tuple[_Key, _Bucket]:
    if type(saved) is not list or len(saved) != 7:
        raise ValueError("a damaged cost model")
    mixed, i, j, features, log_ms, spread, n = saved
    if type(mixed) is not bool or type(features) is not list or len(features) != _N_FEATURES:
        raise ValueError("a damaged cost model")
    bucket = _Bucket([_figure(x, 0, 1e15) for x in features], _figure(log_ms, -20, 20))
    bucket.spread, bucket.n = _figure(spread, 0, 20), min(_figure(n, 1, 1e15), 4.0)
    return (mixed, int(_figure(i, 0, 64)), int(_figure(j, 0, 64))), bucket


def _figure(x: Any, least: float, most: float) -> float:
    """A number within these limits, which no NaN is. Raises ValueError otherwise."""
    if type(x) not in (int, float) or not least <= x <= most:
        raise ValueError("a damaged cost model")
    return float(x)


def _times(x: float, y: float) -> float:
    return x * y


def _cells_octave(cells: int) -> int:
    return max(0, (cells >> 8).bit_length())


def _features(shape: StepShape, passes: int) -> list[float]:
    tokens = shape.tokens
    return [
        float(passes),
        float(tokens),
        float(shape.rows),
        tokens * shape.cells / 1e3,
        shape.pairs / 1e3,
        float(bool(shape.rows and shape.prompt_tokens)),
    ]
