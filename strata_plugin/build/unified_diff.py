"""Reads unified diffs and applies them strictly: every context line must match, nothing is fuzzy.

A hunk goes to the line it names; where the text has only moved it may go elsewhere, but only if the
file has exactly one place that matches it whole.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
# Marks of what a text diff cannot say; refused rather than half applied.
_UNSUPPORTED = ("GIT binary patch", "Binary files ", "rename from ", "copy from ", "new mode ")


class DiffError(Exception):
    """The diff is malformed or does not match the text it is applied to."""


@dataclass(frozen=True)
class Hunk:
    """One run of changed lines; `old` and `new` keep their line ends."""

    header: str
    start: int  # 1-based line of the first old line
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """The changes of one file; a missing path means created (old) or deleted (new)."""

    old_path: str | None
    new_path: str | None
    hunks: tuple[Hunk, ...]


def parse(text: str) -> list[FileDiff]:
    """Returns the file changes of a diff in -p1 form; any text around them is ignored."""
    lines = split_lines(text)
    files: list[FileDiff] = []
    at = 0
    announced = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(_UNSUPPORTED):
            raise DiffError(f"cannot apply {line.strip()!r}: only text changes are supported")
        announced += line.startswith("diff --git ")
        if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            old_path, new_path = _path(line), _path(lines[at + 1])
            at += 2
            hunks = []
            while at < len(lines) and lines[at].startswith("@@ "):
                hunk, at = _parse_hunk(lines, at)
                hunks.append(hunk)
            if not hunks or old_path is new_path is None:
                raise DiffError(f"no hunk follows {line.strip()!r}")
            files.append(FileDiff(old_path, new_path, tuple(hunks)))
        else:
            at += 1
    if not files:
        raise DiffError("it changes no file")
    if announced and announced != len(files):
        raise DiffError(f"it names {announced} files but changes the text of {len(files)}")
    return files


def _path(line: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    if name == "/dev/null":
        return None
    inner = name.split("/", 1)[-1]
    if "/" not in name or ".." in inner.split("/") or inner.startswith("/"):
        raise DiffError(f"path {name!r} is not of the form a/..., b/...")
    return inner


def _parse_hunk(lines: Sequence[str], at: int) -> tuple[Hunk, int]:
    header = lines[at].rstrip("\n")
    match = _HUNK.match(header)
    if match is None:
        raise DiffError(f"malformed hunk header {header!r}")
    n_old, n_new = (1 if match[i] is None else int(match[i]) for i in (2, 4))
    old: list[str] = []
    new: list[str] = []
    at += 1
    while at < len(lines) and (len(old) < n_old or len(new) < n_new or lines[at][0] == "\\"):
        mark, body = lines[at][0], lines[at][1:]
        if mark == "\\":  # "\ No newline at end of file" speaks of the line before it
            previous = lines[at - 1][0]
            for side in [old] * (previous in " -") + [new] * (previous in " +"):
                side[-1] = side[-1].removesuffix("\n")
        elif mark not in " +-\n":
            break
        else:
            if mark == "\n":  # an empty context line whose blank an editor removed
                body = "\n"
            if mark != "+":
                old.append(body)
            if mark != "-":
                new.append(body)
        at += 1
    if (len(old), len(new)) != (n_old, n_new):
        raise DiffError(f"hunk {header!r} ends early or holds other lines than it announces")
    return Hunk(header, int(match[1]), tuple(old), tuple(new)), at


def apply_hunks(text: str, hunks: Sequence[Hunk]) -> str:
    """Returns the changed text; raises DiffError naming the hunk that does not match."""
    lines = split_lines(text)
    result: list[str] = []
    done = 0  # old lines already copied or replaced
    shift = 0  # how far the last hunk lay from the line it named
    for hunk in hunks:
        if not hunk.old and lines:
            raise DiffError(f"hunk {hunk.header!r} has no line to find its place by")
        place = _place(lines, hunk, done, shift)
        shift = place - (hunk.start - 1) if hunk.old else 0
        result += lines[done:place]
        result += hunk.new
        done = place + len(hunk.old)
    return "".join(result + lines[done:])


def _place(lines: Sequence[str], hunk: Hunk, first: int, shift: int) -> int:
    size = len(hunk.old)
    if size == 0:
        return 0
    wanted = hunk.start - 1 + shift
    if wanted >= first and tuple(lines[wanted : wanted + size]) == hunk.old:
        return wanted
    places = [
        at for at in range(first, len(lines) - size + 1) if tuple(lines[at : at + size]) == hunk.old
    ]
    if len(places) == 1:
        return places[0]
    if places:
        raise DiffError(f"hunk {hunk.header!r} fits {len(places)} places, none where it says")
    found = lines[wanted : wanted + size] if wanted >= 0 else []
    for number, line in enumerate(hunk.old):
        have = found[number] if number < len(found) else None
        if have != line:
            shown = "the end of the file" if have is None else repr(have.rstrip("\n"))
            raise DiffError(
                f"hunk {hunk.header!r} does not match: line {wanted + number + 1} is {shown}, "
                f"expected {line.rstrip(chr(10))!r}"
            )
    raise DiffError(f"hunk {hunk.header!r} overlaps the hunk before it")


def split_lines(text: str) -> list[str]:
    """Splits at line feeds only, keeping them: other line separators are text in source files."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
