"""`python -m bench`: strata-server against llama-server, side by side on this machine."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import (
    agents,
    bandwidth,
    budgets,
    cpu_experts,
    frontier,
    machine,
    overhead,
    parsing,
    replay,
    report,
    sides,
)
from bench.runner import Runner
from bench.scenarios import GROUPS, SCENARIOS
from bench.sides import SetupError
from bench.stats import median

SELF_CHECK_TOLERANCE = 0.03
COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "bandwidth": bandwidth.main,
    "budgets": budgets.main,
    "cpu-experts": cpu_experts.main,
    "frontier": frontier.main,
    "overhead": overhead.main,
    "parsing": parsing.main,
    "replay": replay.main,
    "trace": agents.main,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every scenario gave figures, whatever they say."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]](arguments[1:])
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both servers are stopped
    try:
        result = _run(options)
    except SetupError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    path = report.write(result, options.out)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print("\n" + report.terminal(result))
        print(f"\nWritten to {path} and {path.with_suffix('.md').name}")
    failed = [scenario["name"] for scenario in result["scenarios"] if scenario["error"]]
    if options.self_check:
        failed += _off_balance(result)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"Commands with options of their own: {', '.join(COMMANDS)}.",
    )
    parser.add_argument("--quick", action="store_true", help="few pairs: a first look")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of each scenario")
    parser.add_argument(
        "--scenario", action="append", choices=names, metavar="NAME",
        help=f"only this one; may be repeated: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument(
        "--group", action="append", choices=GROUPS,
        help=f"only these scenarios; may be repeated: {', '.join(GROUPS)}",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    sides.add_options(parser)
    parser.add_argument(
        "--self-check", action="store_true",
        help="llama-server against itself: every ratio has to come out near 1",
    )  # fmt: skip
    return parser


def _run(options: argparse.Namespace) -> dict[str, Any]:
    say = report.say
    model = sides.model(options)
    upstream = sides.upstream(options)
    command = (str(upstream),) if options.self_check else tuple(shlex.split(options.strata))
    name = "llama-server (again)" if options.self_check else "strata-server"
    ours = sides.server(name, command, model, options.out)
    theirs = sides.server("llama-server", (str(upstream),), model, options.out)
    busy = machine.busy_share()
    if busy > machine.QUIET_CPU:
        say(f"warning: other processes use {busy:.0%} of the CPU; the figures will be rough")
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    wanted = {one.name for group in options.group or () for one in GROUPS[group]}
    wanted |= set(options.scenario or ())
    chosen = [one for one in SCENARIOS if not wanted or one.name in wanted]
    results = []
    with Runner(ours, theirs, say) as runner:
        for scenario in chosen:
            pairs = options.pairs or (scenario.quick_pairs if options.quick else scenario.pairs)
            say(f"{scenario.title} ({scenario.name}), {pairs} pairs: ours | theirs")
            results.append(runner.run(scenario, pairs))
    others = [pair["others"] for scenario in results for pair in scenario["pairs"]]
    return {
        "format": 1,
        "started": started,
        "machine": machine.describe(),
        "model": model.name,
        "ours": sides.describe(ours, None if options.self_check else sides.commit()),
        "theirs": sides.describe(theirs),
        "self_check": options.self_check,
        "quick": options.quick,
        "others": median(others) if others else 0.0,
        "scenarios": results,
    }  # fmt: skip


def _off_balance(result: dict[str, Any]) -> list[str]:
    """Targeted ratios of a server against itself that are surely not 1."""
    return [
        f"{scenario['name']}.{metric['key']} = {metric['center']:.3f}"
        for scenario in result["scenarios"]
        for metric in scenario["metrics"]
        if metric["compare"] == "ratio"
        and metric["target"] is not None
        and abs(metric["center"] - 1.0) > SELF_CHECK_TOLERANCE
        and not metric["interval_low"] <= 1.0 <= metric["interval_high"]
    ]


if __name__ == "__main__":
    sys.exit(main())
