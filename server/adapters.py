"""Which LoRA adapters a request is computed with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ApiError

Mixture = tuple[tuple[int, float], ...]


class Adapters:
    """The scales of all adapters, for requests that bring none of their own."""

    def __init__(self, scales: Iterable[float]):
        self.scales = list(scales)

    def mixture(self, asked: Iterable[Mapping[str, Any]]) -> Mixture:
        """Number and scale of each adapter that is used. `asked`: objects with "id" and "scale";
        adapters that are not among them have a scale of 0. `ApiError` for one that is not there.
        """
        scales = self._scales(asked)
        chosen = self.scales if scales is None else scales
        return tuple((number, scale) for number, scale in enumerate(chosen) if scale)

    def set(self, asked: Iterable[Mapping[str, Any]]) -> None:
        """Change the scales for all requests that come from now on."""
        scales = self._scales(asked)
        self.scales = [0.0] * len(self.scales) if scales is None else scales

    def _scales(self, asked: Iterable[Mapping[str, Any]]) -> list[float] | None:
        scales: list[float] | None = None
        for entry in asked:
            number = entry.get("id", -1)
            if number not in range(len(self.scales)):
                raise ApiError(f"lora: there is no adapter {number}, only {len(self.scales)}")
            if scales is None:
                scales = [0.0] * len(self.scales)
            scales[number] = float(entry.get("scale", 0.0))
        return scales
