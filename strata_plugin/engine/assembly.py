"""Puts an engine together: model, context, sequences, scheduler, step loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from strata_plugin.build.info import build_info
from strata_plugin.checkpoints.blocks import BlockStore
from strata_plugin.checkpoints.borders import Borders
from strata_plugin.checkpoints.disk import DiskFolder
from strata_plugin.checkpoints.idle import WindowRule
from strata_plugin.checkpoints.keys import Key, namespace
from strata_plugin.checkpoints.model_hash import model_hash
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.checkpoints.traits import PrefixTraits
from strata_plugin.runtime.attention import measurable, measure
from strata_plugin.runtime.context import (
    MAX_SEQUENCES,
    STATE_PARTIAL,
    Context,
    ContextError,
)
from strata_plugin.runtime.devices import thread_counts
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.lora import Adapter
from strata_plugin.runtime.memory_classes import (
    Cost,
    Cut,
    MemoryClass,
    memory_class,
    window_covers,
)
from strata_plugin.runtime.model import Model, ModelError
from strata_plugin.runtime.native import (
    Frontend,
    NativeError,
    NativeUnavailable,
    Sampler,
    memory_class_name,
)
from strata_plugin.scheduling.cost import reading_ms
from strata_plugin.scheduling.scheduler import Limits, Scheduler

from .block_states import BlockStates, EndState
from .config import ContextConfig, EngineConfig
from .core import EngineCore
from .cost_file import CostFile
from .disk_tier import DiskTier
from .messages import AdapterInfo, ModelInfo, Ready, Submit
from .ports import Tokens
from .sequences import Sequences

# Idle sequences beside the rows, where a sequence costs no memory by itself. Where it costs a
# window or
# a recurrent state there are as many as rows; where it costs a whole context there are none.
EXTRA_SEQUENCES = 28
# settings of the context that change a state, or whether llama.cpp takes one
STATE_SETTINGS = (
    "type_k", "type_v", "flash_attn", "offload_kqv", "rope_scaling", "rope_freq_base",
    "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
    "yarn_beta_slow",
)  # fmt: skip

log = logging.getLogger(__name__)


# what goes wrong while an engine is put together, each with one line for a person
LOAD_ERRORS = (ModelError, ContextError, NativeError, NativeUnavailable, ValueError)


class LoadError(Exception):
    """The engine can't be put together; the message is one line for a person."""


class LoadedEngine:
    """A model ready to serve."""

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[float], None] | None,
        clock: Callable[[], float],
    ) -> None:
        log_to_stderr(config.verbosity)
        try:
            self._load(config, on_progress, clock)
        except LOAD_ERRORS as e:
            raise LoadError(str(e)) from e

    def _load(
        self,
        config: EngineConfig,
        on_progress: Callable[[float], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self.model = model = Model(config.model, on_progress=on_progress)
        self._cost_file = CostFile(config.scheduling.cost_model_path)
        c = _with_attention(config, model, self._cost_file)
        context, memory = _make_context(model, c)
        self.context = context
        context.adapters = [Adapter(model, path) for path in config.model.adapters]
        if c.warmup:
            context.warmup()
        self.frontend = Frontend(model.handle, {**config.frontend, "templates": False})
        cost = self._cost_file.cost_model(context.n_ubatch)
        lot = RamParkingLot(config.park_bytes)
        traits = _traits(memory)
        blocks, n_seqs = None, context.n_seq_max
        if context.supports_ranges():
            end = _end_state(memory, config.max_checkpoints)
            only_checkpoints = end is not None
            blocks = BlockStates(
                context,
                BlockStore(lot, config.block_tokens, only_checkpoints=only_checkpoints),
                recompute_ms=lambda start, n: reading_ms(cost, start, n),
                clock=clock,
                disk=_disk_tier(config, c, only_checkpoints=only_checkpoints),
                end=end,
            )
        self.sequences = Sequences(
            context,
            lot,
            n_seqs=n_seqs,
            traits=traits,
            blocks=blocks,
            borders=_borders(config),
            window_rule=_window_rule(memory, model.n_swa),
            survives_failed_step=memory.survives_failed_step,
            copy_pins_window=memory.copy_pins_window,
            has_cells=memory.has_cells,
        )
        own_context = memory.cost_per_sequence is Cost.CONTEXT
        limits = Limits(
            n_rows=c.n_parallel,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
            n_spare=0 if own_context else (n_seqs - c.n_parallel) // 2,
        )
        n_ctx_slot = min(c.n_ctx_slot or context.n_ctx_seq, context.n_ctx_seq, model.n_ctx_train)
        self.core = EngineCore(
            context,
            Scheduler(limits, config.scheduling, cost),
            self.sequences,
            clock=clock,
            n_ctx_slot=n_ctx_slot,
            eog_tokens=model.eog_tokens,
            text=self._text,
            model_key=lambda folder: _model_key(config, c, folder),
            block_tokens=config.block_tokens,
            debug=config.debug,
        )
        if blocks is not None and blocks.disk is not None and config.wait_disk_s > 0:
            blocks.disk.wait_until_open(config.wait_disk_s)
        self.ready = Ready(
            model=model_info(model, memory.name),
            n_ctx=context.n_ctx,
            n_ctx_slot=n_ctx_slot,
            n_slots=c.n_parallel,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
            adapters=tuple(
                AdapterInfo(a.path, a.task_name, a.prompt_prefix) for a in context.adapters
            ),
        )

    def _text(self, tokens: Tokens) -> str:
        body = msgspec.json.encode({"tokens": tokens.tolist()})
        text: str = msgspec.json.decode(self.frontend.detokenize(body))["content"]
        return text

    def make_sampler(self, submit: Submit) -> Sampler:
        """The sampler of a request, with its prompt accepted; raises `NativeError`."""
        sampler = Sampler(self.frontend, submit.sampling)
        sampler.accept(np.frombuffer(submit.prompt, "<i4"), generated=False)
        if submit.resumed is not None:
            sampler.accept(np.frombuffer(submit.resumed.tokens, "<i4"), generated=True)
            if submit.resumed.sampler_state:
                sampler.load(submit.resumed.sampler_state)
        return sampler

    def close(self) -> None:
        """Keep what was learnt and read, free the context and the model."""
        self._cost_file.save()
        self.core.close()
        self.sequences.close()
        self.context.close()
        self.model.close()


def model_info(model: Model, memory_class: str) -> ModelInfo:
    """What the HTTP process is told about a loaded model."""
    return ModelInfo(
        vocab_type=model.vocab_type,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        n_embd=model.n_embd,
        n_params=model.n_params,
        size=model.size,
        ftype=model.ftype,
        desc=model.desc,
        memory_class=memory_class,
    )


def _with_attention(config: EngineConfig, model: Model, kept: CostFile) -> ContextConfig:
    """The context's settings, with `-fa auto` decided by measurement where attention is the CPU's.
    """
    context = config.context
    heads = measurable(model, config.model, context)
    if heads is None:
        return context
    if kept.attention is None:
        _, threads = thread_counts(context)
        kept.attention = measure(heads, model.n_layer, context.type_k, threads)
    times = kept.attention
    log.info(
        "flash attention is %s: %.1f ms with it, %.1f ms without (attention of a token that is"
        " written and of those read before it)",
        times.choice, times.flash, times.plain,
    )  # fmt: skip
    return msgspec.structs.replace(context, flash_attn=times.choice)


def _end_state(memory: MemoryClass, max_checkpoints: int) -> EndState | None:
    """What of a sequence's state exists only at its end; None where it can be cut anywhere."""
    if memory.cut is Cut.ANYWHERE:
        return None
    return EndState(
        flags=STATE_PARTIAL if memory.has_partial_state else 0,
        per_token=memory.has_cells,
        most=max(1, max_checkpoints),
    )


def _borders(config: EngineConfig) -> Borders | None:
    """Where requests are stored before they end."""
    if not config.max_checkpoints:
        return None
    return Borders(config.checkpoint_every, config.checkpoint_root, config.block_tokens)


def _model_key(config: EngineConfig, context: ContextConfig, folder: Path) -> Key:
    """The namespace of a model's states in files; digests of its files are kept in `folder`.

    Raises OSError. Takes as long as reading the model, where its digest isn't known.
    """
    build, digests = build_info(), folder / "models.json"
    return namespace(
        {
            **{name: getattr(context, name) for name in STATE_SETTINGS},
            "model": model_hash(Path(config.model.path), digests),
            "kv_overrides": "\n".join(config.model.kv_overrides),
            "adapters": "\n".join(
                str(model_hash(Path(path), digests)) for path in config.model.adapters
            ),
            "build": build.key or build.version,
        }
    )


def _disk_tier(
    config: EngineConfig, context: ContextConfig, *, only_checkpoints: bool
) -> DiskTier | None:
    if not config.disk.folder:
        return None
    folder, limit = Path(config.disk.folder), config.disk.limit_bytes

    def open_folder() -> tuple[DiskFolder, Key]:
        return DiskFolder(folder, limit), _model_key(config, context, folder)

    return DiskTier(open_folder, config.block_tokens, only_checkpoints=only_checkpoints)


def _make_context(model: Model, config: ContextConfig) -> tuple[Context, MemoryClass]:
    """A context with as many sequences as its memory can afford.

    Which memory class it gets is known only afterwards, so one that was guessed wrongly is made
    again.
    """
    plain = not (model.is_recurrent or model.is_hybrid or model.n_swa)
    n_seqs, unified = config.n_parallel + (EXTRA_SEQUENCES if plain else config.n_parallel), True
    for _ in range(2):
        context = Context(
            model, config, n_seq_max=min(MAX_SEQUENCES, n_seqs), kv_unified=unified
        )
        memory = memory_class(memory_class_name(context.handle), unified=unified)
        if memory.unified == unified and memory.cost_per_sequence is not Cost.CONTEXT:
            break
        if not unified:
            break
        context.close()
        n_seqs, unified = config.n_parallel, memory.unified
    return context, memory


def _traits(memory: MemoryClass) -> PrefixTraits:
    # with a pool of cells for each sequence llama.cpp copies at the next decode only, whole
    # contexts
    can_copy = memory.cost_per_sequence is not Cost.CONTEXT
    return PrefixTraits(
        can_cut=memory.can_cut,
        can_copy_prefix=can_copy and memory.can_copy_prefix,
        can_copy_whole=can_copy and memory.can_copy_whole,
        every_prefix=memory.cut is Cut.ANYWHERE,
    )


def _window_rule(memory: MemoryClass, n_swa: int) -> WindowRule | None:
    if not memory.has_window:
        return None
    return lambda pos_min, n: window_covers(pos_min, n, n_swa)
