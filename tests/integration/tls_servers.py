"""Servers that show a certificate and say nothing more: for clients that must not go on."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from ops.services.certificates import Authority, Issued

PAST = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


@contextlib.contextmanager
def showing(issued: Issued, folder: Path) -> Iterator[int]:
    """A TLS server on 127.0.0.1 with this certificate; gives its port."""
    pem = folder / "server.pem"
    pem.write_bytes(issued.key + issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, context), daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        thread.join(10)


def certificate(authority: Authority, kind: str) -> Issued:
    """One that is over, or for another host."""
    if kind == "expired":
        return authority.issue("server", hosts=("127.0.0.1",), not_after=PAST)
    return authority.issue("server", hosts=("elsewhere.example",))


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            secure.settimeout(1.0)
            secure.recv(1)
