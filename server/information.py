"""What `--help`, `--version`, `--cache-list` and `--list-devices` print."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from strata_plugin import kernels

from .flag import Flag, Status
from .flags import GROUPS
from .flags_absent import ABSENT

NAME_WIDTH = 34
TEXT_WIDTH = 66


def show(action: str, environ: Mapping[str, str]) -> int:
    """Print what `action` (a flag's key) asks for; returns the exit code."""
    if action == "help":
        print(help_text())
    elif action == "version":
        print("\n".join(version_lines()))
    elif action == "cache_list":
        from .download.hub_cache import cache_directory, list_models

        models = list_models(cache_directory(environ))
        print(f"models in {cache_directory(environ)}: {len(models)}")
        for number, name in enumerate(models, 1):
            print(f"{number:4}. {name}")
    else:
        return _list_devices()
    return 0


def help_text() -> str:
    """All flags by group, generated from the tables."""
    parts = [
        "usage: strata-server [flags]\n"
        "       strata-server simulate --help\n\n"
        "Serves a GGUF model over llama-server's HTTP API; flags and environment names are\n"
        "llama-server's, too. What is given on the command line wins over the environment."
    ]
    for title, flags in GROUPS:
        parts.append(f"{title}:\n" + "\n".join(_entry(flag) for flag in flags))
    absent = ", ".join(flag.names[-1] for flag in ABSENT)
    parts.append(
        "Flags of llama-server that Strata does not have yet (they are refused):\n"
        + textwrap.fill(absent, 100, initial_indent="  ", subsequent_indent="  ")
    )
    return "\n\n".join(parts)


def _entry(flag: Flag) -> str:
    names = ", ".join(flag.all_names) + (f" {flag.metavar}" if flag.metavar else "")
    about = textwrap.wrap(describe(flag), TEXT_WIDTH)
    head = f"  {names}"
    first = head.ljust(NAME_WIDTH) + about.pop(0) if len(head) < NAME_WIDTH else head
    return "\n".join([first, *(" " * NAME_WIDTH + line for line in about)])


def describe(flag: Flag) -> str:
    """Help text, default and environment name of a flag in one line."""
    notes = []
    if flag.status is Status.MOOT:
        notes.append("accepted, changes nothing")
    elif (default := shown_default(flag)) != "":
        notes.append(f"default: {default}")
    if flag.env:
        notes.append(f"env: {flag.env}")
    return flag.help + (f" ({'; '.join(notes)})" if notes else "")


def shown_default(flag: Flag) -> str:
    """The default in words; "" when there is none to tell."""
    if flag.shown:
        return flag.shown
    if flag.read is None:
        return ("on" if flag.default else "off") if flag.off else ""
    return "" if flag.default in (None, "", (), {}) else str(flag.default)


def version() -> str:
    """Strata's version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("strata")
    except PackageNotFoundError:
        return "unknown (not installed)"


def native_build() -> dict[str, Any]:
    """`strata_build_info` of the native library; raises what its loading raises."""
    from strata_plugin.runtime import native

    return native.build_info()


def version_lines() -> list[str]:
    """Strata, llama.cpp, and each patch that was applied to it."""
    lines = [f"strata {version()}"]
    try:
        build = native_build()
    except Exception as error:
        return [*lines, f"llama.cpp: the native library cannot be loaded ({error})"]
    lines.append(
        f"llama.cpp {build['llama_commit']} (build {build['build_number']}), "
        f"{build['compiler']} for {build['target']}"
    )
    lines.append("patches: " + (", ".join(build["patches"]) or "none"))
    lines.append("kernel switches: " + kernels.line(build["patches"]))
    return lines


def _list_devices() -> int:
    from strata_plugin.runtime import devices

    names = [name for name in devices.device_names() if name != "CPU"]
    print("Available devices:")
    print("\n".join(f"  {name}" for name in names) or "  (none)")
    return 0
