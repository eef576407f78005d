"""Leases in Redis: the early, friendly refusal of a second process in the same role.

Role: a stage takes one at start and renews it. It is a courtesy: what really fences is the broker (promise 5), so a
lost Redis gives a warning and never stops a stage.
Data in and out: a hash (owner, fencing token) that expires, and a counter beside it that does not.
Invariants: one owner at a time; taking, renewing and releasing compare and set in one script; a repeat by the same
owner is answered with "yours" and the same token, so a command sent twice does no harm; each new owner gets a higher
token.
Failure: `LeaseHeld` naming the holder; an unreachable Redis is `LeaseState.UNKNOWN` with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeline.redis_client import RedisClient
from schemas.errors import LeaseHeld, RedisUnavailable

# KEYS: lease, counter. ARGV: owner, ttl in ms. Reply: state, owner, token, ms left.
_TAKE = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then
  return {'other', owner, redis.call('HGET', KEYS[1], 'token'), redis.call('PTTL', KEYS[1])}
end
if not owner then
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', redis.call('INCR', KEYS[2]))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'yours', ARGV[1], redis.call('HGET', KEYS[1], 'token'), ARGV[2]}
"""
# KEYS: lease. ARGV: owner. Reply: whether it was ours.
_RELEASE = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return {'yours'}
end
return {'other'}
"""


class LeaseState(StrEnum):
    """What a call on a lease found."""

    HELD = "held"
    LOST = "lost"  # another owner has it, or (on release) nobody
    UNKNOWN = "unknown"  # Redis did not answer


@dataclass(frozen=True, kw_only=True)
class LeaseResult:
    """The answer to a call on a lease."""

    state: LeaseState
    token: int | None = None  # fencing token, grows with each new owner; None unless held
    holder: str = ""  # who has it, when it is not us
    warning: str = ""  # what to tell people


class Lease:
    """One role of one run. Constructing it does no I/O.

    Args:
        key: Redis key, such as `rlweave:<run>:lease:learner`.
        owner: unique per process start.
        ttl_s: it ends this long after the last acquire or renew.
    """

    def __init__(self, client: RedisClient, *, key: str, owner: str, ttl_s: float) -> None:
        self._client = client
        self._key = key
        self._owner = owner
        self._ttl_ms = max(1, round(ttl_s * 1000))

    def acquire(self) -> LeaseResult:
        """Take the lease, or find that it is ours already.

        Raises:
            LeaseHeld: another owner has it.
        """
        try:
            state, holder, token, left_ms = self._take()
        except RedisUnavailable as error:
            return self._unknown(error)
        if state == "other":
            raise LeaseHeld(
                f"{self._key} is held by {holder} for another {left_ms / 1000:.1f} s; this process does not start",
                hint=f"stop {holder}, or wait until its lease ends",
            )
        return LeaseResult(state=LeaseState.HELD, token=token)

    def renew(self) -> LeaseResult:
        """Prolong the lease. One that ended, or was flushed, is taken again when nobody else has it (a new token)."""
        try:
            state, holder, token, _ = self._take()
        except RedisUnavailable as error:
            return self._unknown(error)
        if state == "other":
            warning = f"{self._key} was lost to {holder}"
            return LeaseResult(state=LeaseState.LOST, holder=holder, warning=warning)
        return LeaseResult(state=LeaseState.HELD, token=token)

    def release(self) -> LeaseResult:
        """Give the lease back if it is ours."""
        try:
            reply = self._client.script(_RELEASE, keys=[self._key], args=[self._owner])
        except RedisUnavailable as error:
            return self._unknown(error)
        return LeaseResult(state=LeaseState.HELD if reply == ["yours"] else LeaseState.LOST)

    def _take(self) -> tuple[str, str, int, int]:
        """State, holder, token, ms left. Raises RedisUnavailable, also for an entry that no lease of ours wrote."""
        args = [self._owner, str(self._ttl_ms)]
        reply = self._client.script(_TAKE, keys=[self._key, f"{self._key}:fence"], args=args)
        match reply:
            case [state, holder, token, left_ms] if _is_number(token) and _is_number(left_ms.removeprefix("-")):
                return state, holder, int(token), int(left_ms)
        raise RedisUnavailable(f"Redis has something else than a lease under {self._key}", hint="delete that key")

    def _unknown(self, error: RedisUnavailable) -> LeaseResult:
        warning = f"{error.message}; {self._key} is not protected by a lease, a second process is fenced by the broker"
        return LeaseResult(state=LeaseState.UNKNOWN, warning=warning)


def _is_number(text: str) -> bool:
    """Whether it is a number that Redis can hold."""
    return text.isascii() and text.isdecimal() and len(text) < 20
