"""The per-run token that peers ask for.

Role: one secret per run, in a file that only its owner may read; every process of the run on a host reads the same one.
Invariants: created once, whole; two processes that start together agree.
Failure: `WeightsError` when the file holds something else.
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

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,256}")


def load_or_create_token(path: Path) -> str:
    """The token in `path`; made (32 random bytes, mode 0600) when the file is not there.

    Raises:
        WeightsError: the file does not hold a token, or the folder cannot be written.
    """
    if not path.exists():
        make_folder(path.parent)
        _create(path)
    token = path.read_text("ascii", errors="replace").strip()
    if _TOKEN.fullmatch(token) is None:
        raise WeightsError(
            f"{path} does not hold a token (16 to 256 of A-Z a-z 0-9 _ -); no peer was started or asked",
            hint="remove the file, then restart all processes of the run",
        )
    return token


def bearer(token: str) -> str:
    """The value of the Authorization header (RFC 6750)."""
    return f"Bearer {token}"


def is_authorized(header: str | None, *, token: str) -> bool:
    """Whether an Authorization header carries the token; takes the same time for every wrong one."""
    shown = (header if header is not None else "").encode("utf-8", "surrogateescape")  # any bytes may come in
    return hmac.compare_digest(shown, bearer(token).encode())


def _create(path: Path) -> None:
    tmp = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_new(tmp, secrets.token_urlsafe(32).encode(), mode=0o600)
        os.link(tmp, path)  # unlike a rename it fails when another process was first
    except FileExistsError:
        return
    finally:
        tmp.unlink(missing_ok=True)
