"""Command line: `python -m strata_plugin.build [wheel|upstream-server|ui|source] ...`."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from .backend import BACKENDS
from .cache import BuildCache, cache_root
from .errors import BuildError
from .info import build_info
from .install import install, installed_key
from .key import collect
from .source import unpack
from .toolchain import find_cmake
from .ui import ensure_ui
from .upstream import ensure_server, upstream_inputs
from .wheel import cached_wheel, describe, ensure_wheel


def parser() -> argparse.ArgumentParser:
    """Returns the command line's parser."""
    p = argparse.ArgumentParser(
        prog="python -m strata_plugin.build",
        description="Builds the patched llama-cpp-python and installs it into this Python.",
        epilog=f"Cache: {cache_root()} ($STRATA_BUILD_CACHE). CMAKE_ARGS is passed on to CMake.",
    )
    p.add_argument(
        "command",
        nargs="?",
        default="wheel",
        choices=["wheel", "upstream-server", "ui", "source", "check-cmake"],
        help="wheel (default): build and install; upstream-server: build the unpatched "
        "llama-server, print its path; ui: build llama-server's page with npm, print its path; "
        "source: unpack into --to; check-cmake: is CMake new enough",
    )
    p.add_argument("--backend", choices=BACKENDS, default="auto")
    p.add_argument("--cuda-arch", metavar="NN", help="e.g. 89; default: this machine's GPU, or 89")
    p.add_argument("--print-key", action="store_true", help="print the cache key, build nothing")
    p.add_argument("--no-install", action="store_true", help="build only; print the wheel's path")
    p.add_argument("--to", type=Path, metavar="DIR", help="source: where to unpack")
    p.add_argument("--unpatched", action="store_true", help="source: leave the patches out")
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    options = parser().parse_args(argv)
    # a polite kill unwinds like Ctrl-C does: compilers are stopped, half-made files removed
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return _run(options)
    except BuildError as error:
        print(f"strata build: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("strata build: interrupted; the next run continues from here", file=sys.stderr)
        return 130


def _terminated(signum: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # make sends it as well as whoever stops make
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> int:
    cache = BuildCache()
    if options.command == "check-cmake":
        print(find_cmake())
        return 0
    if options.command == "ui":
        print(ensure_ui(cache))
        return 0
    if options.command == "source":
        if options.to is None:
            raise BuildError("source needs --to DIR")
        unpack(options.to, patched=not options.unpatched, cache=cache)
        return 0
    backend, arch = options.backend, options.cuda_arch or None
    if options.command == "upstream-server":
        inputs = upstream_inputs(backend, arch)
        print(inputs.key() if options.print_key else ensure_server(cache, inputs))
        return 0

    inputs = collect(backend, arch)
    key = inputs.key()
    if options.print_key:
        print(key)
        return 0
    if inputs.backend.note:
        print(inputs.backend.note, flush=True)
    if options.no_install:
        print(ensure_wheel(cache, inputs))
        return 0
    if installed_key() == key:
        print(f"up to date: {build_info()}")
        return 0
    origin = "from the cache" if cached_wheel(cache, key) else "newly built"
    wheel = ensure_wheel(cache, inputs)
    install(wheel, key)
    print(f"installed for {describe(inputs)}, {origin}: {build_info()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
