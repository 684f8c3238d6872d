"""Errors that callers of the runtime handle; importable without llama.cpp."""

from __future__ import annotations


class StateError(Exception):
    """A sequence's state could not be saved."""
