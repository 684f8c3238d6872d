"""Building llama-server's page, with a node and an npm that only pretend."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_plugin.build import ui
from strata_plugin.build.cache import BuildCache
from strata_plugin.build.errors import BuildError

NPM = """#!/bin/sh
echo "npm $*"
echo "$*" >> "$CALLS"
case "$1" in
ci) [ -f package.json ] || exit 3 ;;
run) mkdir -p "$LLAMA_UI_OUT_DIR"; $MAKES ;;
esac
"""


class Tools:
    """A folder of programs, the only ones on PATH but for the shell's own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.calls = folder / "calls"
        self.monkeypatch = monkeypatch
        source = folder / "source"
        (source / ui.SOURCE).mkdir(parents=True)
        (source / ui.SOURCE / "package.json").write_text("{}")
        monkeypatch.setattr(ui, "source_tree", lambda patched, cache: source)
        monkeypatch.setenv("CALLS", str(self.calls))
        self.makes("cp package.json $LLAMA_UI_OUT_DIR/index.html")

    def makes(self, command: str) -> None:
        self.program("npm", NPM.replace("$MAKES", command))

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def node(self, version: str) -> None:
        self.program("node", f"#!/bin/sh\necho {version}\n")

    def only(self) -> None:
        self.monkeypatch.setenv("PATH", str(self.folder))

    def first(self) -> None:
        self.monkeypatch.setenv("PATH", f"{self.folder}:/usr/bin:/bin")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path, monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


def test_the_page_is_built_once_without_scripts_of_packages(
    tools: Tools, cache: BuildCache, capfd: pytest.CaptureFixture[str]
) -> None:
    tools.node("v20.19.1")
    tools.first()
    assert ui.built_ui(cache) is None
    folder = ui.ensure_ui(cache)
    assert folder == ui.built_ui(cache) == cache.root / "ui" / ui.KEY
    assert (folder / "index.html").read_text() == "{}"
    calls = tools.calls.read_text().splitlines()
    assert calls == ["ci --ignore-scripts --no-audit --no-fund", "run build"]
    assert list((cache.root / "work").iterdir()) == []
    assert "log" in capfd.readouterr().out
    assert ui.ensure_ui(cache) == folder
    assert len(tools.calls.read_text().splitlines()) == 2


@pytest.mark.parametrize("missing", ["node", "npm"])
def test_what_is_missing_is_named_and_that_it_is_not_needed(
    tools: Tools, cache: BuildCache, missing: str
) -> None:
    tools.node("v22.12.0")
    (tools.folder / missing).unlink()
    tools.only()
    with pytest.raises(BuildError, match=rf"^{missing} not found; .* Node\.js 20\.19 or newer"):
        ui.ensure_ui(cache)
    assert ui.built_ui(cache) is None


@pytest.mark.parametrize("version", ["v18.20.4", "v20.18.3", "what"])
def test_a_node_that_is_too_old_is_refused(tools: Tools, cache: BuildCache, version: str) -> None:
    tools.node(version)
    tools.first()
    with pytest.raises(BuildError, match=rf"node is {version}; Node\.js 20\.19 or newer"):
        ui.ensure_ui(cache)
    assert not tools.calls.exists()


def test_a_build_that_fails_leaves_nothing_and_shows_its_last_lines(
    tools: Tools, cache: BuildCache
) -> None:
    tools.node("v20.19.1")
    tools.first()
    tools.makes("echo half > $LLAMA_UI_OUT_DIR/index.html; echo no space; exit 7")
    with pytest.raises(BuildError, match=r"npm run failed with status 7.*\n(.*\n)*no space"):
        ui.ensure_ui(cache)
    assert ui.built_ui(cache) is None
    assert list((cache.root / "ui").iterdir()) == list((cache.root / "work").iterdir()) == []


def test_a_build_without_a_page_is_an_error(tools: Tools, cache: BuildCache) -> None:
    tools.node("v20.19.1")
    tools.first()
    tools.makes("true")
    with pytest.raises(BuildError, match=r"npm built no index\.html"):
        ui.ensure_ui(cache)
