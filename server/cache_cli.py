"""`strata-cache`: looks at the disk tier of the prefix cache, checks it and makes it smaller.

Servers may use the folder meanwhile: what is removed here is a miss for them.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from strata_plugin.cache_folder import cache_folder
from strata_plugin.checkpoints.disk import FORMAT, DiskFolder, Entry, Trouble

NO_LIMIT = 1 << 62


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when all is well, 1 when something was damaged or can't be done."""
    options = _parser().parse_args(arguments)
    path = Path(options.cache_dir or cache_folder("prompts"))
    if not (path / f"blocks-{FORMAT}").is_dir():
        print(f"strata-cache: no prompts are kept in {path}", file=sys.stderr)
        return 1
    try:
        return COMMANDS[options.command](DiskFolder(path, NO_LIMIT), options)
    except Trouble as error:
        print(f"strata-cache: {error}", file=sys.stderr)
        return 1


def stats(disk: DiskFolder, options: argparse.Namespace) -> int:
    """How much there is."""
    entries = list(disk.entries())
    print(f"folder   {disk.path}")
    print(f"size     {disk.volume() / 2**20:.1f} MiB, index included")
    print(f"blocks   {len(entries)}, {sum(len(e.tokens) for e in entries)} tokens")
    print(f"prompts  {len(_leaves(entries))} that end differently")
    roots = len({e.root for e in entries})
    print(f"kept by  {roots} namespaces (models, settings, API keys, salts)")
    if entries:
        used = [e.used for e in entries]
        print(f"used     {_ago(min(used))} to {_ago(max(used))} ago")
    return 0


def ls(disk: DiskFolder, options: argparse.Namespace) -> int:
    """One line for each prompt: its last block, tokens in all, bytes of it alone, last use."""
    entries = list(disk.entries())
    print("last block        namespace   tokens      MiB  used")
    for e in sorted(_leaves(entries), key=lambda e: -e.used):
        print(
            f"{e.key.hex()[:16]}  {e.root.hex()[:8]}  {e.start + len(e.tokens):8d} "
            f"{e.n_file / 2**20:8.1f}  {_ago(e.used)} ago"
        )
    return 0


def verify(disk: DiskFolder, options: argparse.Namespace) -> int:
    """Read everything; remove what is damaged, left over, or without its beginning."""
    listed = disk.count()
    whole: dict[bytes, Entry] = {}
    unreadable = 0
    for entry in list(disk.entries()):
        try:
            found = disk.read(entry.key, used=False)
        except Trouble as error:
            print(f"{entry.key.hex()[:16]} stays, but can't be read: {error}", file=sys.stderr)
            whole[entry.key] = entry
            unreadable += 1
            continue
        if found is not None:
            whole[entry.key] = found.entry
    damaged = listed - len(whole)
    lost = 0
    for entry in sorted(whole.values(), key=lambda e: e.start):
        if entry.parent != entry.root and entry.parent not in whole:
            disk.remove(entry.key)
            del whole[entry.key]
            lost += 1
    left = disk.remove_orphans()
    print(
        f"{len(whole)} blocks are whole; removed: {damaged} damaged, {lost} without their "
        f"beginning, {left} files that were left over"
    )
    return 1 if damaged or lost or left or unreadable else 0


def prune(disk: DiskFolder, options: argparse.Namespace) -> int:
    """Remove what was used longest ago until the folder takes no more than --to."""
    entries = {e.key: e for e in disk.entries()}
    followers = Counter(e.parent for e in entries.values())
    ends = [(e.used, key) for key, e in entries.items() if key not in followers]
    heapq.heapify(ends)
    removed = 0
    while ends and disk.volume() > options.to << 20:
        _, key = heapq.heappop(ends)
        disk.remove(key)
        removed += 1
        parent = entries[key].parent
        followers[parent] -= 1
        if not followers[parent] and parent in entries:
            heapq.heappush(ends, (entries[parent].used, parent))
    print(f"{removed} blocks removed, {disk.volume() / 2**20:.1f} MiB left")
    return 0


def clear(disk: DiskFolder, options: argparse.Namespace) -> int:
    """Remove everything."""
    entries = list(disk.entries())
    for entry in entries:
        disk.remove(entry.key)
    print(f"{len(entries)} blocks removed")
    return 0


COMMANDS: Mapping[str, Callable[[DiskFolder, argparse.Namespace], int]] = {
    command.__name__: command for command in (stats, ls, verify, prune, clear)
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="strata-cache", description=__doc__)
    parser.add_argument("--cache-dir", help="the server's --cache-dir")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
        if name == "prune":
            sub.add_argument("--to", type=_mebibytes, required=True, metavar="MiB")
    return parser


def _mebibytes(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def _leaves(entries: Sequence[Entry]) -> list[Entry]:
    followed = {e.parent for e in entries}
    return [e for e in entries if e.key not in followed]


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
