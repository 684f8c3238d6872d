"""The storage scenarios' arithmetic: what counts as new, and what as read again."""

from __future__ import annotations

from typing import Any

import pytest

from bench import client, storage


class Told:
    """Stands in for a server and for `client.send`; it remembers as many prompts as it may."""

    name, port = "fake", 1

    def __init__(self, keeps: int) -> None:
        self.keeps = keeps
        self.known: list[str] = []
        self.kills = self.starts = 0

    def send(self, port: int, request: client.Request) -> client.Reply:
        prompt = str(request.body["prompt"])
        words = prompt.split()
        known = [len(text.split()) for text in self.known if prompt.startswith(text)]
        best = max(known, default=0)
        cached = min(best, len(words) - 1)
        answer = " yes" * int(request.body["n_predict"])
        self.known.append(prompt + answer)
        self.known = self.known[len(self.known) - min(self.keeps, len(self.known)) :]
        timings = {
            "prompt_n": len(words) - cached, "cache_n": cached,
            "predicted_n": int(request.body["n_predict"]),
        }  # fmt: skip
        events = (
            client.Event(0.1, {"content": answer}),
            client.Event(0.2, {"content": "", "stop": True, "timings": timings}),
        )
        return client.Reply(started=0.0, status=200, events=events, end_at=0.2)

    def check(self) -> None:
        pass

    def start(self, flags: tuple[str, ...], again: bool = False) -> float:
        self.starts += 1
        return 0.0

    def kill(self) -> None:
        self.kills += 1


def run(monkeypatch: pytest.MonkeyPatch, keeps: int, scenario: Any) -> tuple[Any, Told]:
    server = Told(keeps)
    monkeypatch.setattr(storage.client, "send", server.send)
    return scenario(server, 0), server


def test_who_keeps_all_reads_what_is_new_and_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, _ = run(monkeypatch, 100, storage.in_turn(3, 4, 50, 10, n_predict=5))
    assert figures["read_tokens"] == 10 and figures["reread_tokens"] == 0


def test_who_keeps_too_little_reads_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, _ = run(monkeypatch, 1, storage.in_turn(3, 4, 50, 10, n_predict=5))
    assert figures["reread_tokens"] >= 50


def test_what_a_killed_server_still_has_is_told_in_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, server = run(monkeypatch, 100, storage.killed(2, 50, 10, 0.0, n_predict=5))
    assert (figures["restored_percent"], server.kills, server.starts) == (100.0, 1, 2)
    figures, _ = run(monkeypatch, 0, storage.killed(2, 50, 10, 0.0, n_predict=5))
    assert figures["restored_percent"] < 5
