"""POST /slots as clients meet it: names of files, refusals, whose slot it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_server.api.slots import is_file_name
from strata_server.flags import UsageError, parse
from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving


def ask(path: str, body: Any, folder: str = "/slots/there") -> tuple[int, Any, FakeEngine]:
    engine, replies = FakeEngine(), []

    async def go() -> None:
        async with serving(fake_service(engine, slot_save_path=folder)) as client:
            content = body if isinstance(body, bytes) else None
            json = None if content is not None else body
            replies.append(await client.post(path, content=content, json=json))

    run(go())
    return replies[0].status_code, replies[0].json(), engine


def test_actions_reach_the_engine_with_a_path_in_the_folder() -> None:
    for action in ("save", "restore"):
        code, reply, engine = ask(f"/slots/2?action={action}", {"filename": "my chat.bin"})
        assert (code, reply) == (200, {"id_slot": 2})
        assert engine.acted[:3] == (action, 2, "/slots/there/my chat.bin")
    code, reply, engine = ask("/slots/0?action=erase", b"")
    assert (code, engine.acted[:3]) == (200, ("erase", 0, ""))


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/slots/4?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/-1?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/x?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/0?action=load", {"filename": "a"}, "Invalid action"),
        ("/slots/0", {"filename": "a"}, "Invalid action"),
        ("/slots/0?action=save", {"filename": "../a"}, "Invalid filename"),
        ("/slots/0?action=save", {"filename": 3}, "'filename' must be a string"),
        ("/slots/0?action=save", {}, "'filename' must be a string"),
        ("/slots/0?action=save", [1], "must be a JSON object"),
        ("/slots/0?action=save", b"{", "not JSON"),
        ("/slots/0?action=restore", {"filename": "bad"}, "Unable to restore slot: it is damaged"),
    ],
)
def test_what_is_wrong_is_said(path: str, body: Any, message: str) -> None:
    code, reply, _ = ask(path, body)
    assert code == 400 and reply["error"]["type"] == "invalid_request_error"
    assert message in reply["error"]["message"]


def test_without_a_folder_there_are_no_slot_files() -> None:
    code, reply, _ = ask("/slots/0?action=save", {"filename": "a"}, folder="")
    assert code == 501 and "--slot-save-path" in reply["error"]["message"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a\\b", "a:b", "a\0b", "a\n", " a", "a ", "a.", "x" * 256,
     "/etc/passwd", "a\u2215\u2215b/c", "\uff0e\uff0e\uff0fetc", "\ud800", "models.json", "a|b"],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    assert not is_file_name(name)


def test_other_names_are_taken() -> None:
    assert all(is_file_name(name) for name in ("a", "chat-1.bin", "größe 2", "a..b", "x" * 255))


def test_the_folder_has_to_be_there(tmp_path: Path) -> None:
    assert parse(["--slot-save-path", str(tmp_path)], {})["slot_save_path"] == str(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        parse(["--slot-save-path", str(tmp_path / "nowhere")], {})
