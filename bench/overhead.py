"""`python -m bench overhead`: the scheduler's own time, without a model or a server.

All requests come at once, to a machine that is described by two figures; its cost model learns as
in the engine. Timed is what the engine's step loop spends on scheduling: rows and sequences handed
out, the plan, and its completion (with the learning). The rest of a step is the engine's.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence

from bench.stats import median, quantile
from strata_plugin.scheduling.config import SchedulingConfig
from strata_plugin.scheduling.cost import AnalyticCost, LearnedCost
from strata_plugin.scheduling.plan import RowPiece
from strata_plugin.scheduling.scheduler import Limits, Scheduler
from strata_plugin.scheduling.seating import fill

TARGET_MS = 0.3
N_UBATCH = 512


def step_times(requests: int, rows: int, *, tenants: int = 8, seed: int = 0) -> list[float]:
    """Milliseconds that scheduling took in each step until all `requests` were answered."""
    rng = random.Random(seed)
    machine = AnalyticCost(pass_ms=8.0, token_ms=0.3, attention_ms=0.02, n_ubatch=N_UBATCH)
    limits = Limits(rows, 2048, N_UBATCH, n_spare=rows)
    scheduler = Scheduler(limits, SchedulingConfig(), LearnedCost(N_UBATCH))
    left = {number: rng.randint(20, 200) for number in range(requests)}
    for number in left:
        scheduler.submit(
            number,
            n_prompt=int(rng.paretovariate(1.0) * 40) % 8000 + 40,
            arrival=float(number),
            tenant=f"tenant {number % tenants}",
        )

    def start(number: int, slot: int | None) -> bool:
        scheduler.admit(number, slot, 0)
        return True

    times = []
    while left:
        began = time.perf_counter()
        fill(scheduler, start=start, seated=lambda *_: None, fits=lambda _: True)
        plan = scheduler.plan()
        took = time.perf_counter() - began
        assert plan is not None, "requests are left, and nothing is computed"
        elapsed_ms = machine.predict(scheduler.plan_shape(plan)) * rng.uniform(0.95, 1.05)
        began = time.perf_counter()
        scheduler.complete(plan, elapsed_ms)
        times.append((took + time.perf_counter() - began) * 1e3)
        for piece in plan.pieces:
            if isinstance(piece, RowPiece):
                left[piece.request_id] -= 1
                if left[piece.request_id]:
                    scheduler.sampled(piece.request_id)
                else:
                    scheduler.finish(piece.request_id)
                    del left[piece.request_id]
    return times


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 0 where the median is within the target."""
    parser = argparse.ArgumentParser(prog="python -m bench overhead", description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rows", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    result = []
    for rows in options.rows:
        times = step_times(options.requests, rows)
        result.append(
            {
                "rows": rows,
                "steps": len(times),
                "p50_ms": median(times),
                "p95_ms": quantile(times, 0.95),
                "mean_ms": sum(times) / len(times),
            }
        )
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{options.requests} requests; ms of scheduling in a step (target {TARGET_MS})")
        for one in result:
            print(
                f"{one['rows']:3d} rows: p50 {one['p50_ms']:.3f}, p95 {one['p95_ms']:.3f}, "
                f"mean {one['mean_ms']:.3f} ({one['steps']} steps)"
            )
    return 0 if all(one["p50_ms"] <= TARGET_MS for one in result) else 1
