"""The patch series: strict application, order, and error texts. No compiler, no network."""

from pathlib import Path

import pytest

from strata_plugin.build.errors import BuildError
from strata_plugin.build.patches import PATCHES_DIR, Patch, apply_series, read_series
from strata_plugin.build.unified_diff import DiffError, apply_hunks, parse

TEXT = "".join(f"line {n}\n" for n in range(1, 11))


def diff(*body: str, start: int = 4, old: int = 3, new: int = 3, name: str = "a.txt") -> str:
    head = f"--- a/{name}\n+++ b/{name}\n@@ -{start},{old} +{start},{new} @@\n"
    return head + "".join(line + "\n" for line in body)


CHANGE = diff(" line 4", "-line 5", "+line five", " line 6")


def tree_with(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return tmp_path


def test_patch_changes_the_lines_it_names(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, a_txt=TEXT)
    apply_series(tree, [Patch("0001-x.patch", "Some words first.\n\n" + CHANGE + "-- \n2.4\n")])
    assert (tree / "a.txt").read_text() == TEXT.replace("line 5", "line five")


def test_patches_apply_in_order_each_on_the_result_of_the_last(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, a_txt=TEXT)
    second = diff(" line 4", "-line five", "+line 5 again", " line 6")
    apply_series(tree, [Patch("0001-x.patch", CHANGE), Patch("0002-y.patch", second)])
    assert "line 5 again\n" in (tree / "a.txt").read_text()


def test_patch_that_does_not_apply_names_itself_and_the_line(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, a_txt=TEXT.replace("line 6", "something else"))
    with pytest.raises(BuildError) as caught:
        apply_series(tree, [Patch("0007-broken.patch", CHANGE)])
    message = str(caught.value)
    assert "0007-broken.patch does not apply" in message
    assert "a.txt" in message
    assert "line 6 is 'something else', expected 'line 6'" in message


def test_failing_patch_writes_none_of_its_files(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, a_txt=TEXT, b_txt="other\n")
    both = CHANGE + diff("-line 1", "+line one", start=1, old=1, new=1, name="b.txt")
    with pytest.raises(BuildError, match=r"b\.txt"):
        apply_series(tree, [Patch("0001-x.patch", both)])
    assert (tree / "a.txt").read_text() == TEXT


def test_context_that_differs_in_one_outer_line_is_refused_where_patch_would_use_fuzz() -> None:
    body = [f" line {n}" for n in range(2, 5)] + ["-line 5", "+new"]
    body += [f" line {n}" for n in range(6, 9)]
    hunks = parse(diff(*body, start=2, old=7, new=7))[0].hunks
    assert apply_hunks(TEXT, hunks) == TEXT.replace("line 5", "new")
    with pytest.raises(DiffError, match="line 2 is"):
        apply_hunks(TEXT.replace("line 2\n", "changed\n"), hunks)


def test_hunk_follows_text_that_has_moved_when_only_one_place_matches() -> None:
    hunks = parse(CHANGE)[0].hunks
    assert apply_hunks("new\nnew\n" + TEXT, hunks) == "new\nnew\n" + TEXT.replace("5", "five")


def test_hunk_that_fits_two_places_but_not_its_own_is_refused() -> None:
    hunks = parse(CHANGE)[0].hunks
    with pytest.raises(DiffError, match="fits 2 places"):
        apply_hunks("new\n" + TEXT + TEXT, hunks)


def test_later_hunks_of_a_moved_file_keep_the_offset() -> None:
    two = CHANGE + "@@ -8,2 +8,1 @@\n line 8\n-line 9\n"
    moved = "new\n" + TEXT
    expected = moved.replace("line 5", "line five").replace("line 9\n", "")
    assert apply_hunks(moved, parse(two)[0].hunks) == expected


def test_files_are_created_and_deleted(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, old_txt="one\n")
    text = "--- /dev/null\n+++ b/sub/new.txt\n@@ -0,0 +1,2 @@\n+x\n+y\n"
    text += "--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    apply_series(tree, [Patch("0001-x.patch", text)])
    assert (tree / "sub" / "new.txt").read_text() == "x\ny\n"
    assert not (tree / "old.txt").exists()


def test_missing_newline_at_the_end_of_a_file_is_kept_and_changed() -> None:
    mark = "\\ No newline at end of file\n"
    hunks = parse(f"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n{mark}+y\n{mark}")[0].hunks
    assert apply_hunks("x", hunks) == "y"
    with pytest.raises(DiffError, match="does not match"):
        apply_hunks("x\n", hunks)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no diff at all\n", "changes no file"),
        ("--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n x\n", "ends early"),
        ("--- a/f\n+++ b/f\n@@ one two @@\n x\n", "malformed"),
        ("--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-x\n+y\n", "not of the form"),
        ("diff --git a/f b/f\nGIT binary patch\n", "only text changes"),
        ("diff --git a/f b/f\nnew file mode 100644\n" + CHANGE + "diff --git a/g b/g\n", "2 files"),
    ],
)
def test_diff_that_cannot_be_applied_whole_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DiffError, match=reason):
        parse(text)


def test_insertion_without_context_is_refused() -> None:
    hunks = parse("--- a/f\n+++ b/f\n@@ -3,0 +4 @@\n+x\n")[0].hunks
    with pytest.raises(DiffError, match="no line to find its place by"):
        apply_hunks(TEXT, hunks)


def test_series_lists_files_in_order_and_allows_comments(tmp_path: Path) -> None:
    (tmp_path / "b.patch").write_text("B")
    (tmp_path / "a.patch").write_text("A")
    (tmp_path / "series").write_text("# why\nb.patch  # first\n\na.patch\n")
    assert [(p.name, p.text) for p in read_series(tmp_path)] == [("b.patch", "B"), ("a.patch", "A")]


def test_series_that_lists_a_missing_patch_says_which(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("0009-gone.patch\n")
    with pytest.raises(BuildError, match=r"0009-gone\.patch, which is not there"):
        read_series(tmp_path)


def test_every_patch_of_the_project_is_listed_readable_and_described() -> None:
    patches = read_series()
    assert {p.name for p in patches} == {p.name for p in PATCHES_DIR.glob("*.patch")}
    described = (PATCHES_DIR / "README.md").read_text()
    for patch in patches:
        assert parse(patch.text), patch.name
        assert f"## {patch.title}" in described
