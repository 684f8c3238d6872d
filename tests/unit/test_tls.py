"""Certificate and key: which pairs are taken, and what is said of the others."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from strata_server.flags import UsageError, parse
from strata_server.model_file import ModelFile
from strata_server.options import server_settings
from strata_server.sockets import bind_all
from strata_server.tls import TlsError, check_pair
from tests.unit.certificates import encrypt, write_pair

MODEL = ModelFile("/m.gguf", "m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    write_pair(folder, "a", ca, "localhost")
    write_pair(folder, "b", ca, "localhost")
    encrypt(folder / "a.key", folder / "locked.key")
    rsa = generate_private_key(65537, 2048)
    (folder / "rsa.key").write_bytes(
        rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (folder / "both.pem").write_bytes(
        (folder / "a.crt").read_bytes() + (folder / "a.key").read_bytes()
    )
    (folder / "text").write_text("no PEM\n")
    (folder / "empty").touch()
    (folder / "broken.crt").write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    return folder


@pytest.mark.parametrize(("cert", "key"), [("a.crt", "a.key"), ("both.pem", "both.pem")])
def test_a_pair_that_fits_is_taken(folder: Path, cert: str, key: str) -> None:
    check_pair(str(folder / cert), str(folder / key))


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("a.crt", "b.key", "--ssl-key-file: '{key}' is not the key of the certificate '{cert}'"),
        ("a.crt", "rsa.key", "--ssl-key-file: '{key}' is not the key of the certificate '{cert}'"),
        ("a.crt", "locked.key", "--ssl-key-file: '{key}' needs a passphrase"),
        ("a.crt", "text", "--ssl-key-file: no PEM private key in '{key}'"),
        ("a.crt", "empty", "--ssl-key-file: no PEM private key in '{key}'"),
        ("a.crt", "a.crt", "--ssl-key-file: no PEM private key in '{key}'"),
        ("text", "a.key", "--ssl-cert-file: no PEM certificate in '{cert}'"),
        ("empty", "a.key", "--ssl-cert-file: no PEM certificate in '{cert}'"),
        ("broken.crt", "a.key", "--ssl-cert-file: no PEM certificate in '{cert}'"),
        ("a.key", "a.crt", "--ssl-cert-file: no PEM certificate in '{cert}'"),
    ],
)
def test_each_fault_of_a_pair_is_named(folder: Path, cert: str, key: str, message: str) -> None:
    paths = {"cert": str(folder / cert), "key": str(folder / key)}
    with pytest.raises(TlsError) as caught:
        check_pair(paths["cert"], paths["key"])
    assert str(caught.value) == message.format(**paths)


def test_what_openssl_says_of_a_certificate_it_refuses_is_passed_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = ssl.SSLError(1, "[SSL: EE_KEY_TOO_SMALL] ee key too small")
    refusal.reason = "EE_KEY_TOO_SMALL"

    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    with pytest.raises(TlsError, match=r"OpenSSL refuses '.*a.crt': EE_KEY_TOO_SMALL$"):
        check_pair(str(folder / "a.crt"), str(folder / "a.key"))


def test_certificate_and_key_go_together(folder: Path) -> None:
    cert, key = str(folder / "a.crt"), str(folder / "a.key")
    with pytest.raises(UsageError, match=r"^HTTPS needs --ssl-key-file, too$"):
        server_settings(parse(["--ssl-cert-file", cert], {}), MODEL)
    with pytest.raises(UsageError, match=r"^HTTPS needs --ssl-cert-file, too$"):
        server_settings(parse([], {"LLAMA_ARG_SSL_KEY_FILE": key}), MODEL)
    both = {"LLAMA_ARG_SSL_KEY_FILE": key, "LLAMA_ARG_SSL_CERT_FILE": cert}
    settings = server_settings(parse([], both), MODEL)
    assert (settings.ssl_cert_file, settings.ssl_key_file) == (cert, key)
    assert server_settings(parse([], {}), MODEL).ssl_cert_file == ""


def test_a_file_that_is_missing_is_named_with_its_flag() -> None:
    with pytest.raises(UsageError, match=r"^--ssl-cert-file: cannot read '/nowhere': No such file"):
        parse(["--ssl-cert-file", "/nowhere"], {})


def test_urls_begin_with_https_but_for_unix_sockets(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    tcp, unix = bind_all(["127.0.0.1", path], 0, False, "https")
    port = tcp.socket.getsockname()[1]
    assert (tcp.url, unix.url) == (f"https://127.0.0.1:{port}", f"unix://{path}")
    tcp.close()
    unix.close()
