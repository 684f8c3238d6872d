"""What a repository of a Hugging Face hub holds, asked with the hub's own library."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..information import version
from .http_client import DownloadError, Refused, failure, host

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. `oid` names its content: the SHA-256 of large ones."""

    path: str
    oid: str
    size: int | None
    url: str

    @property
    def sha256(self) -> str:
        """Hex digest, "" where only git's is known."""
        return self.oid if len(self.oid) == 64 else ""


@dataclass(frozen=True)
class Listing:
    """The newest commit of a repository, its files, and the token that showed them."""

    commit: str
    files: tuple[HubFile, ...]
    token: str


def list_files(endpoint: str, name: str, token: str) -> Listing:
    """Ask the hub at `endpoint` for USER/MODEL; without `token` the one of `hf auth login` counts.

    Raises `DownloadError`.
    """
    # else the library first asks the public hub which program may have started this one
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import httpx2
    from huggingface_hub import HfApi, get_token, hf_hub_url
    from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN
    from huggingface_hub.errors import HfHubHTTPError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        token = token or ("" if HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token() or "")
        api = HfApi(endpoint, token or False, library_name="strata", library_version=version())
        found = api.model_info(name, files_metadata=True, timeout=TIMEOUT_S)
        files = tuple(
            HubFile(
                path=file.rfilename,
                oid=file.lfs.sha256 if file.lfs else file.blob_id or "",
                size=file.lfs.size if file.lfs else file.size,
                url=hf_hub_url(name, file.rfilename, revision=found.sha, endpoint=endpoint),
            )
            for file in found.siblings or ()
        )
    except HfHubHTTPError as error:
        raise refused(endpoint, name, token, Refused(endpoint, error.response)) from None
    except httpx2.HTTPError as error:
        raise failure(endpoint, error) from None
    except Exception as error:  # whatever else the library makes of an odd answer or an odd token
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DownloadError(f"{host(endpoint)} cannot be asked for {name}: {what}") from None
    commit = found.sha or ""
    if not _hex(commit, 40):
        raise DownloadError(f"{host(endpoint)} names no commit of {name}")
    return Listing(commit, tuple(f for f in files if _is_safe(f)), token)


def refused(endpoint: str, name: str, token: str, answer: Refused) -> DownloadError:
    """What a refusal means for a person who wants USER/MODEL."""
    where = host(endpoint)
    private = "" if token else "; if it is private, give a token (-hft or HF_TOKEN)"
    if answer.code == "GatedRepo":
        ask = f"{name} is gated on {where}: ask for access at {endpoint}/{name}"
        return DownloadError(ask + ("" if token else ", then give a token (-hft or HF_TOKEN)"))
    if answer.status in (401, 403) and token:
        return DownloadError(f"{where} does not take this token for {name} ({answer.status})")
    if answer.status in (401, 403, 404):
        return DownloadError(f"{where} has no {name} ({answer.status}){private}")
    return DownloadError(f"{where} answers {answer.status} for {name}")


def _is_safe(file: HubFile) -> bool:
    """Whether name and content id stay below the folders that they are put into."""
    path = PurePosixPath(file.path)
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and (_hex(file.oid, 40) or _hex(file.oid, 64))


def _hex(text: str, length: int) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{length}}}", text) is not None
