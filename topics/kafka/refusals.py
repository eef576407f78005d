"""Told apart: a broker that is away, which passes, and one that does not let us in, which does not.

Role: the library tries wrong credentials again and again, for ever; this turns them into one error.
Data in: the library's errors, by its callback; what a TLS handshake of our own says of the port.
Invariants: one refusal is no verdict while a client works: only when refusals go on for `_LIMIT_S`, no broker was away
meanwhile and no broker answers when asked, the client gives up.
Failure: `AccessDenied`, naming address, user and what to correct.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from schemas.errors import AccessDenied
from topics.clock import Clock, SystemClock
from topics.kafka.client import Connection

_LIMIT_S = 10.0
_ASK_S = 5.0
_PROBE_S = 2.0
_CREDENTIALS_HINT = (
    "see kafka.security, kafka.credentials_dir (or kafka.user and kafka.password_file) and kafka.sasl_mechanism"
)
_CERTIFICATE_HINT = (
    "kafka.ca_file names the authority that signed it, and its names must include the host in kafka.bootstrap and in "
    "the broker's advertised listeners"
)


class Refusals:
    """What the brokers told one client about its credentials. Use from the client's thread."""

    def __init__(self, connection: Connection, *, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock if clock is not None else SystemClock()
        self._last: KafkaError | None = None
        self._since_s = 0.0

    def note(self, error: KafkaError) -> None:
        """The library's error callback."""
        if _is_refusal(error):
            if self._last is None:
                self._since_s = self._clock.monotonic()
            self._last = error
        elif error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            self._last = None  # away, not refusing

    def check(self, ask: Callable[[float], object]) -> None:
        """Give up when the refusals last.

        Args:
            ask: asks the brokers anything, within the seconds given; raises KafkaException when none answers.

        Raises:
            AccessDenied: no broker lets us in.
        """
        if self._last is None or self._clock.monotonic() - self._since_s < _LIMIT_S:
            return
        try:
            ask(_ASK_S)
        except KafkaException as exception:
            self.raise_any(cause=exception)
        self._last = None

    def raise_any(self, *, cause: KafkaException) -> None:
        """Give up at once, when a broker refused us and none answers.

        Raises:
            AccessDenied: one did.
        """
        if self._last is not None:
            raise denied(self._connection, self._last) from cause
        mismatch = _mismatch(self._connection)
        if mismatch is not None:
            raise mismatch from cause


def denied(connection: Connection, error: KafkaError) -> AccessDenied:
    """The error for a broker's refusal of our credentials, or ours of its certificate."""
    where = connection.bootstrap
    if error.code() == KafkaError._AUTHENTICATION:
        user = connection.overrides.get("sasl.username", "")
        return AccessDenied(
            f"Kafka at {where} refused the credentials of user {user!r}: {_plain(error)}", hint=_CREDENTIALS_HINT
        )
    mismatch = _mismatch(connection)
    if mismatch is not None:
        return mismatch
    return AccessDenied(f"no TLS with Kafka at {where}: {_plain(error)}", hint=_CERTIFICATE_HINT)


def _is_refusal(error: KafkaError) -> bool:
    return error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "certificate verify failed" in error.str()


def _plain(error: KafkaError) -> str:
    """The library's words without its own address and timing."""
    return re.sub(r"^\S+://\S+: (?:SASL authentication error: )?|\s*\(after \d+ms in state \w+\)", "", error.str())


def _mismatch(connection: Connection) -> AccessDenied | None:
    """What a TLS handshake of our own says of the first port that takes connections; None: nothing against it.

    The library does not say why a connection was closed, nor what is wrong with a certificate.
    """
    protocol = connection.overrides.get("security.protocol", "plaintext").lower()
    for address in connection.bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not port.isdigit():
            continue
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as plain:
                return _judge(plain, host=host.strip("[]"), address=address, connection=connection, protocol=protocol)
        except OSError:
            continue
    return None


def _judge(
    plain: socket.socket, *, host: str, address: str, connection: Connection, protocol: str
) -> AccessDenied | None:
    uses_tls = protocol.endswith("ssl")
    verify = uses_tls and connection.overrides.get("enable.ssl.certificate.verification", "true") != "false"
    try:
        with _context(connection, verify=verify).wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        return AccessDenied(
            f"the certificate of Kafka at {address} was refused: {error.verify_message}", hint=_CERTIFICATE_HINT
        )
    except (ssl.SSLError, ConnectionError):
        if not uses_tls:
            return None
        return AccessDenied(
            f"Kafka at {address} does not speak TLS, and kafka.security is {protocol!r}",
            hint="set kafka.security to 'plaintext' or 'sasl_plaintext', or give the port of a listener with TLS",
        )
    if uses_tls:
        return None
    return AccessDenied(
        f"Kafka at {address} speaks TLS, and kafka.security is {protocol!r}",
        hint="set kafka.security to 'sasl_ssl' (or 'ssl' when no user is wanted), and kafka.ca_file",
    )


def _context(connection: Connection, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=connection.overrides.get("ssl.ca.location") if verify else None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif connection.overrides.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context
