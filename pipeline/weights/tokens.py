"""The per-run token that peers ask for.

Role: one secret per run, the same on every host: in the file that `weights.token_file` names, else in
`RLWEAVE_PEER_TOKEN`, else in the run's folder, where it is made when nobody else made it. A run on one machine needs no
more; on several, the file of the first one is taken to the others.
A peer is shown the token's proof for its own URL, never the token: manifests and Redis name URLs, and whoever put a
false one there must not learn what opens the others.
Invariants: a file that is made is made once, whole, and for its owner only; two processes that start together agree.
What the settings name is read and never made, since each host would make another one.
Failure: `WeightsError` when there is no token where one should be.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import uuid
from pathlib import Path

from pipeline.weights.files import make_folder, write_new
from schemas.errors import WeightsError

TOKEN_FILE = "peer-token"  # noqa: S105 - in the run's folder
TOKEN_VARIABLE = "RLWEAVE_PEER_TOKEN"  # noqa: S105 - its name
_PROOF = b"rlweave peer "
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,256}")


def load_or_create_token(path: Path) -> str:
    """The token in `path`; made (32 random bytes, mode 0600) when the file is not there.

    Raises:
        WeightsError: the file does not hold a token, or the folder cannot be written.
    """
    if not path.exists():
        make_folder(path.parent)
        _create(path)
    return _checked(path.read_text("ascii", errors="replace"), where=str(path))


def run_token(folder: Path, *, token_file: Path | None) -> str:
    """The token of the run in `folder`.

    Args:
        token_file: what the settings name; None: the environment, or the run's own file.

    Raises:
        WeightsError: there is no token in it, or the folder cannot be written.
    """
    if token_file is not None:
        try:
            return _checked(token_file.read_text("ascii", errors="replace"), where=str(token_file))
        except OSError as error:
            raise WeightsError(
                f"weights.token_file = {token_file} cannot be read: {error.strerror}; no peer was started or asked",
                hint="make it once with `rlweave token FILE` and copy it to every host of the run",
            ) from error
    given = os.environ.get(TOKEN_VARIABLE)
    if given is not None:
        return _checked(given, where=TOKEN_VARIABLE)
    return load_or_create_token(folder / TOKEN_FILE)


def bearer(token: str, *, url: str) -> str:
    """The value of the Authorization header (RFC 6750) for the peer at `url`, and for no other one.

    It holds HMAC-SHA256 (RFC 2104) of the URL under the token, as 64 hexadecimal digits.
    """
    return f"Bearer {hmac.new(token.encode(), _PROOF + url.rstrip('/').encode(), 'sha256').hexdigest()}"


def is_authorized(header: str | None, *, token: str, url: str) -> bool:
    """Whether an Authorization header opens the peer at `url`; takes the same time for every wrong one.

    The token itself does as well, for people with an HTTP client.
    """
    shown = (header if header is not None else "").encode("utf-8", "surrogateescape")  # any bytes may come in
    proof = hmac.compare_digest(shown, bearer(token, url=url).encode())
    return hmac.compare_digest(shown, f"Bearer {token}".encode()) or proof


def _checked(text: str, *, where: str) -> str:
    token = text.strip()
    if _TOKEN.fullmatch(token) is None:
        raise WeightsError(
            f"{where} does not hold a token (16 to 256 of A-Z a-z 0-9 _ -); no peer was started or asked",
            hint="`rlweave token FILE` makes one; every process of the run needs the same",
        )
    return token


def _create(path: Path) -> None:
    tmp = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_new(tmp, secrets.token_urlsafe(32).encode(), mode=0o600)
        os.link(tmp, path)  # unlike a rename it fails when another process was first
    except FileExistsError:
        return
    finally:
        tmp.unlink(missing_ok=True)
