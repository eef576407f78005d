"""What counts as a secret, so that it is refused where it does not belong and hidden where it is shown.

Role: under the settings, their messages and the Redis client.
Failure: `SettingsError` without the secret.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from schemas.errors import SettingsError

HIDDEN = "***"
_MAX_SHOWN_CHARS = 200
_MAX_SHOWN_BITS = 256
# Of librdkafka: sasl.password, ssl.key.password, ssl.keystore.password, ssl.key.pem, sasl.oauthbearer.client.secret,
# sasl.oauthbearer.config and what later versions add in these words.
_SECRET_NAME = re.compile(r"passw|secret|(?:^|[._-])token$|key\.pem|oauthbearer\.config|jaas|api.?key", re.IGNORECASE)
_URL_OPTION = re.compile(r"(?<=[?&]password=)[^&\s'\"]*")
_ASSIGNED = re.compile(r"(['\"]?([\w.-]{1,64})['\"]?\s?[=:]\s?)(?:\"[^\"]*\"|'[^']*'|[^\s,;'\"}\])]+)")
_BEARER = re.compile(r"\b(Bearer\s+)[^\s,;'\"]+", re.IGNORECASE)
_WORD = re.compile(r"[^\s'\"]+")


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret, not the name of a file with one."""
    return _SECRET_NAME.search(name) is not None and not name.endswith(("_file", "_dir", "_env", ".location"))


def shown(value: object, *, name: str = "") -> str:
    """A value as a message may show it: secrets are hidden, by the setting's name or as part of a URL."""
    if is_secret_name(name):
        return HIDDEN
    if isinstance(value, int) and value.bit_length() > _MAX_SHOWN_BITS:  # Python refuses to write out so many digits
        return f"a number of {value.bit_length()} bits"
    hidden = _WORD.sub(lambda word: _without_options(_without_login(word[0])), repr(value))
    return _URL_OPTION.sub(HIDDEN, hidden)[:_MAX_SHOWN_CHARS]


def scrubbed(text: str) -> str:
    """A line for people with what looks like a secret hidden: logins and options of URLs, what follows the name of a
    secret and `=` or `:`, what follows `Bearer`."""
    hidden = _WORD.sub(lambda word: _without_options(_without_login(word[0])), text)
    hidden = _BEARER.sub(rf"\1{HIDDEN}", hidden)
    return _ASSIGNED.sub(lambda found: f"{found[1]}{HIDDEN}" if is_secret_name(found[2]) else found[0], hidden)


def _without_login(word: str) -> str:
    """The word with `user:password` in the URL it holds hidden. In one pass, since what is looked through may be of any
    length: a regular expression took half a minute for 30 kB."""
    begin, end = word.find("://") + 3, word.rfind("@")
    return f"{word[:begin]}{HIDDEN}{word[end:]}" if 2 < begin <= end and ":" in word[begin:end] else word


def is_secret_option(name: str) -> bool:
    """Whether an option in the query of a URL opens something: signatures and keys do, too."""
    return is_secret_name(name) or any(word in name.lower() for word in ("sig", "key", "credential"))


def _without_options(word: str) -> str:
    """The word with the values of secret options in the query of the URL it holds hidden."""
    path, mark, query = word.partition("?")
    if not mark or "://" not in path:
        return word
    options = [option.partition("=") for option in query.split("&")]
    shown_ones = [
        f"{name}={HIDDEN}" if is_secret_option(name) else f"{name}{sign}{value}" for name, sign, value in options
    ]
    return f"{path}?{'&'.join(shown_ones)}"


def check_no_password(url: str) -> None:
    """Refuse a URL with a password in it: URLs get into settings.json, arguments and messages.

    Raises:
        SettingsError: without the URL.
    """
    try:
        options = parse_qs(urlsplit(url).query)
    except ValueError:
        options = {}  # not a URL; whoever opens it says so
    if any(_without_login(word) != word for word in _WORD.findall(url)) or any(map(is_secret_name, options)):
        raise SettingsError(
            "the URL of Redis holds a password",
            hint="take it out, and name a file with it in redis.password_file, or set RLWEAVE_REDIS_PASSWORD",
        )
