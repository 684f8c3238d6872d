"""Flags about LoRA adapters."""

from __future__ import annotations

import math

from .flag import Flag, flag, quoted_names, switch


def files(value: str) -> tuple[str, ...]:
    """Files, separated by commas."""
    return quoted_names(value)


def scaled_files(value: str) -> tuple[tuple[str, float], ...]:
    """Files with their scales: FNAME:SCALE,..."""
    return tuple(_scaled(item) for item in quoted_names(value))


def _scaled(item: str) -> tuple[str, float]:
    path, colon, text = item.rpartition(":")
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not colon or not path or not math.isfinite(scale):
        raise ValueError(f"expected FNAME:SCALE, got '{item}'")
    return path, scale


LORA: tuple[Flag, ...] = (
    flag(
        "--lora",
        "LoRA adapters, applied with scale 1",
        files,
        metavar="FNAME,...",
        many=True,
        default=(),
    ),
    flag(
        "--lora-scaled",
        "LoRA adapters with scales of their own",
        scaled_files,
        metavar="FNAME:SCALE,...",
        many=True,
        default=(),
    ),
    switch(
        "--lora-init-without-apply",
        "load adapters without applying them: requests, or POST /lora-adapters, say their scales",
    ),
)
