"""TLS between peers, by settings: what the server shows, and what clients check it against.

Role: makes the `ssl` contexts of the peer server and of the fetcher; https is the rest.
Data in: PEM files. Data out: contexts for TLS 1.2 and newer, with names and certificates checked by clients.
Invariants: a wrong file is named before anything listens or connects; no passphrase is asked for on a terminal.
Failure: `WeightsError`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from schemas.errors import WeightsError

_MISMATCH = "KEY_VALUES_MISMATCH"  # OpenSSL's word


def server_context(*, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What a server shows; None without a certificate: plain http.

    Args:
        cert: PEM certificate chain, the server's own first.
        key: PEM private key of it, without a passphrase; None: it is in `cert` as well.

    Raises:
        WeightsError: a file is missing, unreadable or no PEM, the key has a passphrase or is not that of the
            certificate, or there is a key alone.
    """
    if cert is None:
        if key is not None:
            raise WeightsError(
                f"tls_key is {key}, but tls_cert is not set; nothing is served without TLS by accident",
                hint="set weights.tls_cert to the certificate of that key, or remove weights.tls_key",
            )
        return None
    for path, name in ((cert, "tls_cert"), (key if key is not None else cert, "tls_key")):
        _check_readable(path, name=name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(lambda: context.load_cert_chain(cert, key, password=_refuse_passphrase), cert=cert, key=key)
    return context


def client_context(*, ca: Path | None) -> ssl.SSLContext:
    """What clients check a server's certificate and name against.

    Args:
        ca: PEM certificates to trust; None: those of the system.

    Raises:
        WeightsError: the file is missing, unreadable or holds no certificate.
    """
    if ca is None:
        return ssl.create_default_context()
    _check_readable(ca, name="tls_ca")
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise WeightsError(
            f"tls_ca {ca} holds no PEM certificate ({error.reason}); no peer was asked",
            hint="weights.tls_ca names the certificates that sign those of the peers",
        ) from error


def _load(load: Callable[[], None], *, cert: Path, key: Path | None) -> None:
    where = f"tls_cert {cert}" if key is None else f"tls_cert {cert} and tls_key {key}"
    try:
        load()
    except ssl.SSLError as error:
        if error.reason == _MISMATCH:
            raise WeightsError(
                f"{where} do not belong together; nothing is served", hint="give the key that the certificate is for"
            ) from error
        raise WeightsError(
            f"{where} cannot be used: no PEM certificate with its key in them ({error.reason}); nothing is served",
            hint="both are PEM files; the chain begins with the server's own certificate",
        ) from error


def _refuse_passphrase() -> bytes:
    raise WeightsError(
        "tls_key has a passphrase, which nobody is there to type; nothing is served",
        hint="store the key without one, readable for this user only (openssl pkey -in KEY -out NEW)",
    )


def _check_readable(path: Path, *, name: str) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise WeightsError(
            f"{name} {path} cannot be read: {error.strerror}; no peer is started or asked", hint=f"see weights.{name}"
        ) from error
