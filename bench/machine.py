"""Where the benchmark runs: the machine in words, and how much CPU others are taking from it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench.servers import Server

QUIET_CPU = 0.05  # share of all cores that others may use before we warn


@dataclass(frozen=True)
class Machine:
    """What a reader needs to know about the computer."""

    cpu: str
    cores: int  # that this process may use
    memory_bytes: int
    system: str
    python: str

    def line(self) -> str:
        """The machine in one line."""
        cores = f"{self.cores} core{'' if self.cores == 1 else 's'}"
        return f"{self.cpu}, {cores}, {self.memory_bytes / 2**30:.0f} GiB, {self.system}"


def describe() -> dict[str, object]:
    """This machine, ready for JSON."""
    return asdict(
        Machine(
            cpu=_cpu_model(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=psutil.virtual_memory().total,
            system=_system(),
            python=platform.python_version(),
        )
    )


def busy_share(seconds: float = 1.0) -> float:
    """Share (0..1) of all cores in use over the next `seconds`."""
    return float(psutil.cpu_percent(interval=seconds)) / 100.0


class CpuWatch:
    """Counts the CPU time between `begin` and `end`: ours (the client), the servers', others'.

    Others' time counts what the hypervisor took (steal) too. The clock ticks are 10 ms, so spans
    well under a second say little.
    """

    def __init__(self, servers: Iterable[Server]) -> None:
        self._servers = tuple(servers)
        self._begin = (0.0, 0.0, 0.0, 0.0)

    def begin(self) -> None:
        """Start counting; servers that aren't running yet count from zero."""
        self._begin = self._now()

    def end(self) -> tuple[float, float]:
        """(CPU seconds of the client, share 0..1 of all cores that others used)."""
        then, now = self._begin, self._now()
        wall, busy, client, servers = (b - a for a, b in zip(then, now, strict=True))
        others = max(0.0, busy - client - servers)
        return client, others / (wall * (psutil.cpu_count() or 1))

    def _now(self) -> tuple[float, float, float, float]:
        times = psutil.cpu_times()
        busy = sum(getattr(times, name, 0.0) for name in _BUSY)
        servers = sum(server.cpu_s() for server in self._servers)
        return time.perf_counter(), busy, time.process_time(), servers


_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, Linux {platform.release()}" if platform.system() == "Linux" else name
