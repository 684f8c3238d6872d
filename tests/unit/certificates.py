"""Certificates for tests of HTTPS, of an authority that lives in the test alone."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)


def write_pair(folder: Path, name: str, ca: trustme.CA, *hosts: str) -> tuple[Path, Path]:
    """Certificate and key, as `name`.crt and `name`.key."""
    issued = ca.issue_cert(*hosts)
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return cert, key


def encrypt(key: Path, target: Path) -> None:
    """Writes the same key under a passphrase."""
    loaded = load_pem_private_key(key.read_bytes(), None)
    target.write_bytes(
        loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    )
