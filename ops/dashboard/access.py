"""Who may ask, and what every answer says to the browser.

Role: the dashboard shows prompts and completions, so it is for whoever started it. On a loopback address the address
itself is the lock, and the `Host` header must name it, so that a page of another site whose name resolves to loopback
reads nothing. On any other address a token is asked for.
Invariants: nothing but GET and HEAD; nothing is loaded from, sent to or shown inside another site's page; a token in a
URL is taken out of it at once and kept in a cookie that scripts do not see.
Failure: 401, 403 and 405, each with a sentence.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

COOKIE = "rlweave_dashboard"
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def guard(*, host: str, token: str | None) -> Middleware:
    """The middleware of all routes.

    Args:
        host: address that is listened on.
        token: that is asked for; None: none is.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, host=host, token=token)
        return await handler(request) if refusal is None else refusal

    return check


async def add_headers(_: web.Request, answer: web.StreamResponse) -> None:
    """Said with every answer, also with those that the library makes."""
    for name, value in HEADERS.items():
        answer.headers[name] = value
    answer.headers.setdefault("Cache-Control", "no-store")


def _refusal(request: web.Request, *, host: str, token: str | None) -> web.Response | None:
    if request.method not in ("GET", "HEAD"):
        return web.Response(status=405, text="this server only answers GET\n")
    if token is None:
        if is_loopback(host) and not _names_this(request.host, own=host):
            return web.Response(status=403, text="this server answers on its own address only\n")
        return None
    given = request.query.get("token")
    if given is not None and _equal(given, token):
        url = request.rel_url.without_query_params("token")
        answer = web.Response(status=303, headers={"Location": str(url)})
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", path="/")
        return answer
    shown = request.cookies.get(COOKIE, request.headers.get("Authorization", "").removeprefix("Bearer "))
    if _equal(shown, token):
        return None
    return web.Response(status=401, text="open the address that `rlweave dashboard` printed: it holds the token\n")


def _names_this(header: str, *, own: str) -> bool:
    name = header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]
    return name in _LOCAL_NAMES or name == own


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())  # any bytes may come in
