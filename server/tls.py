"""Certificate and key of HTTPS, looked at before anything is started."""

from __future__ import annotations

import ssl

# what OpenSSL says of a key that belongs to another certificate; the last: one of another kind
MISFIT = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


class TlsError(Exception):
    """The pair cannot be used; one line for a person."""


def check_pair(cert_file: str, key_file: str) -> None:
    """Raises `TlsError` unless OpenSSL would serve with this PEM certificate and this PEM key.

    Asks for no passphrase: a server that starts by itself has nobody to type one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cert_file)
    except (ssl.SSLError, OSError):
        raise TlsError(f"--ssl-cert-file: no PEM certificate in '{cert_file}'") from None
    try:
        context.load_cert_chain(cert_file, key_file, _no_passphrase)
    except TlsError:
        raise TlsError(f"--ssl-key-file: '{key_file}' needs a passphrase") from None
    except ssl.SSLError as error:
        if error.reason is None:  # OpenSSL's PEM reader gives none
            raise TlsError(f"--ssl-key-file: no PEM private key in '{key_file}'") from None
        if error.reason in MISFIT:
            raise TlsError(
                f"--ssl-key-file: '{key_file}' is not the key of the certificate '{cert_file}'"
            ) from None
        raise TlsError(f"--ssl-cert-file: OpenSSL refuses '{cert_file}': {error.reason}") from None


def _no_passphrase() -> str:
    raise TlsError
