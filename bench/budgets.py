"""`python -m bench budgets`: a thousand conversations through small tiers whose limits are watched.

Several times a second: what the RAM tier says it takes, what the disk folder takes, and
the resident memory of the server, which has to be flat once RAM and KV cache are full.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import client, sides
from bench.servers import Server
from bench.stats import median
from bench.streams import check, completion, random_text

MIB = 1 << 20
FLAT = 1.02  # resident memory at the end, against that of the second quarter
POLL_S = 0.25


def main(arguments: Sequence[str]) -> int:
    """Print what was seen at most; 1 where a limit was passed or memory has grown."""
    parser = argparse.ArgumentParser(prog="python -m bench budgets", description=__doc__)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--words", type=int, default=120, help="of each prompt")
    parser.add_argument("--ram", type=int, default=256, help="MiB of the RAM tier")
    parser.add_argument("--disk", type=int, default=1024, help="MiB of the disk tier")
    sides.add_options(parser)
    options = parser.parse_args(arguments)
    server = sides.ours(options)
    server.start(("--cache-ram", str(options.ram), "--cache-disk", str(options.disk), "-c", "4096"))
    try:
        watch = Watch(server)
        watch.start()
        for number in range(options.conversations):
            prompt = random_text(f"budget {number}", options.words)
            check(server, [client.send(server.port, completion(prompt, 2))])
            if number % 50 == 49:
                print(f"{number + 1} conversations", file=sys.stderr)
        time.sleep(2)
        view = watch.end()
    finally:
        server.stop()
    return _report(watch, view, options.ram * MIB, options.disk * MIB)


@dataclass
class Sample:
    """Bytes at one moment."""

    ram: int
    disk: int
    rss: int


@dataclass
class Watch(threading.Thread):
    """Takes samples until `end`."""

    server: Server
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        """Take a sample every `POLL_S`."""
        while not self._over.wait(POLL_S):
            view = self._view()
            folder = _taken(Path(self.server.kept))
            self.samples.append(Sample(view["ram"]["bytes"], folder, self.server.memory().rss))

    def end(self) -> dict[str, Any]:
        """Stop; the last view of GET /cache."""
        self._over.set()
        self.join()
        return self._view()

    def _view(self) -> dict[str, Any]:
        reply = client.send(self.server.port, client.Request("/cache"))
        found: dict[str, Any] = json.loads(reply.text)
        return found


def _taken(folder: Path) -> int:
    """Bytes of all files of a folder, at a moment in which none came or went."""
    before = _files(folder)
    while (now := _files(folder)) != before:  # else one that took another's place counts as well
        before = now
    return sum(now.values())


def _files(folder: Path) -> dict[str, int]:
    found = {}
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # it went meanwhile
                found[os.path.join(path, name)] = os.stat(os.path.join(path, name)).st_size
    return found


def _report(watch: Watch, view: dict[str, Any], ram: int, disk: int) -> int:
    samples = watch.samples
    quarter = len(samples) // 4
    early = median([s.rss for s in samples[quarter : 2 * quarter]])
    late = median([s.rss for s in samples[-quarter:]])
    most_ram, most_disk = max(s.ram for s in samples), max(s.disk for s in samples)
    print(f"{len(samples)} samples")
    print(f"RAM tier: {most_ram / MIB:.1f} of {ram / MIB:.0f} MiB at most, "
          f"{view['ram']['evicted_blocks']} blocks dropped")  # fmt: skip
    print(f"disk tier, index included: {most_disk / MIB:.1f} of {disk / MIB:.0f} MiB at most, "
          f"{view['disk']['evicted_blocks']} blocks dropped")  # fmt: skip
    print(f"resident memory: {early / MIB:.0f} MiB in the second quarter, "
          f"{late / MIB:.0f} MiB in the last, x {late / early:.3f}")  # fmt: skip
    return int(most_ram > ram or most_disk > disk or late > FLAT * early)
