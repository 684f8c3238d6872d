"""The pinned source archive of llama-cpp-python: fetched through pip, checked, read."""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from .cache import BuildCache
from .errors import BuildError

PROJECT = "llama-cpp-python"
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
ARCHIVE = f"llama_cpp_python-{VERSION}.tar.gz"


def fetch(cache: BuildCache) -> Path:
    """Returns the path of the checked archive; downloads it only when the cache has none."""
    path = cache.folder("sdist") / ARCHIVE
    if path.is_file() and file_sha256(path) == SHA256:
        return path
    print(f"fetching {PROJECT} {VERSION} (77 MB source archive)", flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tmp-") as folder:
        fetched = _download(Path(folder))
        check(fetched)
        fetched.replace(path)
    return path


def _download(folder: Path) -> Path:
    # The hash in the requirement makes pip check the archive before it runs any code from it. Only
    # this project is taken as source: with ":all:" pip would build the build tools from source too.
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PROJECT}=={VERSION} --hash=sha256:{SHA256}\n", encoding="ascii")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", PROJECT, "--no-build-isolation", "--dest", str(folder)]
    done = subprocess.run(
        [*command, "-r", str(requirement)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(
            f"pip could not fetch {PROJECT} {VERSION} (sha256 {SHA256}):\n{done.stderr.strip()}"
        )
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise BuildError(f"pip reported success but left no {ARCHIVE}")
    return archive


def file_sha256(path: Path) -> str:
    """Returns the file's SHA-256 in lower-case hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check(path: Path, expected: str = SHA256) -> None:
    """Raises BuildError when the archive is not the pinned one."""
    found = file_sha256(path)
    if found != expected:
        raise BuildError(
            f"{path.name} is not the pinned archive: sha256 is {found}, expected {expected}. "
            "Nothing from it was run; a proxy or mirror may have altered it."
        )


def extract(archive: Path, dest: Path) -> None:
    """Unpacks the archive into `dest` (empty or missing), without its leading folder.

    The git metadata it carries stays out: 39 MB, and CMake would ask it for versions.
    """
    dest.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:gz") as tar:
        members = []
        for member in tar:
            _, _, inner = member.name.partition("/")
            if inner and ".git" not in inner.split("/"):
                member.name = inner
                members.append(member)
        # Older Pythons lack extraction filters; the archive's hash is pinned, so it is the same
        # known archive with or without one.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(dest, members=members, filter="data")
        else:
            tar.extractall(dest, members=members)


def llama_commit(changelog: str, version: str = VERSION) -> str:
    """Returns the llama.cpp commit (short hash) that the changelog names for a version."""
    section = re.search(rf"^## \[{re.escape(version)}\]$(.*?)(?=^## \[|\Z)", changelog, re.M | re.S)
    commits = re.findall(r"llama\.cpp@([0-9a-f]{7,40})\b", section.group(1)) if section else []
    if not commits:
        raise BuildError(f"CHANGELOG.md of {PROJECT} names no llama.cpp commit for {version}")
    return str(commits[0])  # newest entry first
