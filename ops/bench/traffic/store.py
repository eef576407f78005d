"""The host that checkpoints go to: an FTP server over a folder, `python -m ops.bench.traffic.store HOST PORT FOLDER`.

Role: the far end of the uploads: a server of its own with a link of its own, that fsspec reaches without a further
package. It says `ready` on its output, and ends when its input ends.
Failure: without pyftpdlib, which `make setup` installs, it ends with what is missing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings

_MAX_CONNECTIONS = 256


def main() -> None:
    """Serve until the input ends."""
    try:
        from pyftpdlib.authorizers import DummyAuthorizer  # noqa: PLC0415 - only this process needs it
        from pyftpdlib.handlers import FTPHandler  # noqa: PLC0415
        from pyftpdlib.servers import FTPServer  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f"bench traffic needs pyftpdlib: {error}")
    host, port, folder = sys.argv[1:4]
    authorizer = DummyAuthorizer()
    logging.getLogger("pyftpdlib").addHandler(logging.NullHandler())  # else it sets up its own, and tells every part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # anybody may write: only this laboratory's hosts reach it
        authorizer.add_anonymous(folder, perm="elradfmwMT")

    class Handler(FTPHandler):  # type: ignore[misc] # the library has no types
        """Anonymous users of the laboratory network may write."""

    Handler.authorizer = authorizer
    Handler.use_sendfile = False
    server = FTPServer((host, int(port)), Handler)
    server.max_cons = _MAX_CONNECTIONS
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever(handle_exit=False)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
