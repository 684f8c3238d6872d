"""Builds and runs `reference.c`: plain llama.cpp replaying what an engine did to its context."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from strata_plugin.build.source import source_tree
from strata_plugin.engine.assembly import LoadedEngine
from strata_plugin.runtime.library import lib_dir


@cache
def reference_program() -> Path:
    """The compiled program, beside the pinned source that it was built from."""
    source = Path(__file__).with_name("reference.c")
    tree = source_tree(patched=True) / "vendor/llama.cpp"
    program = tree.parent / f"reference-{sysconfig.get_platform()}"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(
            [
                "cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(source),
                f"-I{tree}/include", f"-I{tree}/ggml/include", f"-L{lib_dir()}",
                "-lllama", "-lggml", "-lggml-base", "-lm",
            ],
            check=True,
        )  # fmt: skip
    return program


@dataclass
class Recorder:
    """Notes what an engine does to its context, and the logits it gets."""

    engine: LoadedEngine
    steps: list[np.ndarray] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)  # (sequence, position) of each logits
    batch_sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        context = self.engine.context
        decode, remove, copy = context.decode, context.remove, context.copy

        def recording_decode(batch):
            code = decode(batch)
            assert code == 0
            n = batch.n_tokens
            columns = (batch._tokens, batch._positions, batch._seq, batch._outputs)
            table = np.stack([c[:n].astype(np.int32) for c in columns], axis=1)
            self.steps.append(np.concatenate(([np.int32(n)], table.ravel())).astype(np.int32))
            self.batch_sizes.append(n)
            for i in np.flatnonzero(table[:, 3]):
                self.logits.append(context.logits(int(i)).copy())
                self.rows.append((int(table[i, 2]), int(table[i, 1])))
            return code

        def recording_remove(seq_id, start=0):
            self.steps.append(np.array([-1, seq_id, start], np.int32))
            return remove(seq_id, start)

        def recording_copy(source, target, n=None):
            self.steps.append(np.array([-2, source, target, -1 if n is None else n], np.int32))
            copy(source, target, n)

        context.decode, context.remove, context.copy = (
            recording_decode,
            recording_remove,
            recording_copy,
        )

    def replay(self) -> np.ndarray:
        """Logits of the reference program for the same steps, shape (rows, n_vocab)."""
        context, model = self.engine.context, self.engine.model
        arguments = (
            self.path, context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max,
            context.threads, model.n_vocab, int(context.kv_unified),
        )  # fmt: skip
        result = subprocess.run(
            [str(reference_program()), *map(str, arguments)],
            input=b"".join(s.tobytes() for s in self.steps),
            stdout=subprocess.PIPE,
            check=True,
            # not in the program: another checkout may have built it, and be gone
            env={**os.environ, "LD_LIBRARY_PATH": str(lib_dir())},
        )
        return np.frombuffer(result.stdout, np.float32).reshape(-1, model.n_vocab)

    @property
    def path(self) -> str:
        return self.engine.path
