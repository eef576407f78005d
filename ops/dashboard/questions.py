"""What a page asks of a run besides its stream: lists of ids and groups, one group, one sample.

Data in: an open run and the request's query. Data out: values for orjson.
Invariants: pages are bounded by `MAX_PAGE`; the ledger is indexed from the first question on, and every answer says how
far it is read.
Failure: `SettingsError` for a query that is none; errors of the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from ops.dashboard.group_view import group_json, tokens_json
from ops.dashboard.ledger_rows import OutcomeRow
from ops.dashboard.runs import OpenRun, Runs
from schemas.errors import SettingsError
from topics.clock import Deadline

MAX_PAGE = 200
_PAGE = 50
_MAX_NUMBER = 2**53
_MOMENT_S = 1.5
_LOOK_S = 0.05


class Query:
    """The query of a request."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """A word; None: it is absent or empty."""
        return self._values.get(name) or None

    def number(self, name: str, *, default: int, most: int = _MAX_NUMBER) -> int:
        """A whole number from 0.

        Raises:
            SettingsError: it is none.
        """
        given = self._values.get(name)
        if given is None:
            return default
        if not (given.isascii() and given.isdecimal() and len(given) < 17):
            raise SettingsError(f"{name} = {given!r:.80} is no whole number from 0")
        return min(int(given), most)


def listed(runs: Runs) -> object:
    """The runs there are."""
    return [
        {
            "name": run.name,
            "state": run.state,
            "lineage": run.lineage,
            "step": run.step,
            "last_unix_ms": run.last_unix_ms,
            "on_broker": run.topics > 0,
        }
        for run in runs.seen()
    ]


def lost(run: OpenRun, query: Query) -> object:
    """Sample ids that were dropped or failed: how many of each reason, and a page of them."""
    run.feed.want_index()
    page = run.index.lost(
        reason=query.text("reason"),
        skip=query.number("skip", default=0),
        limit=query.number("limit", default=_PAGE, most=MAX_PAGE),
    )
    return {"counts": run.index.drops(), "rows": page.rows, "num_all": page.num_all, **_state(run)}


def outcomes(run: OpenRun, query: Query) -> object:
    """A page of groups with an outcome."""
    run.feed.want_index()
    page = run.index.outcomes(
        result=query.text("result"),
        skip=query.number("skip", default=0),
        limit=query.number("limit", default=_PAGE, most=MAX_PAGE),
    )
    return {"rows": page.rows, "num_all": page.num_all, **_state(run)}


def apart(run: OpenRun, query: Query) -> object:
    """A page of trained samples on which trainer and sampler agree least, those furthest apart first."""
    run.feed.want_index()
    page = run.index.apart(
        skip=query.number("skip", default=0), limit=query.number("limit", default=_PAGE, most=MAX_PAGE)
    )
    return {"rows": page.rows, "num_all": page.num_all, **_state(run)}


def group(run: OpenRun, query: Query) -> object:
    """One group; with `member`, that sample token by token, too.

    Raises:
        SettingsError: no group is named.
    """
    if query.text("group") is None:
        raise SettingsError("no group is named", hint="add ?group=NUMBER")
    run.feed.want_index()
    number = query.number("group", default=0)
    known = _outcomes_of(run, number)
    found = run.finder.find(number, ledger=[(row.offset, row.at_ms) for row in known])
    if run.index.share_read < 1 and not known:
        found.notes.append("the ledger is not read to its beginning yet: an outcome may be missing here")
    surviving = frozenset(row.offset for row in known if not row.is_void)
    values = group_json(found, surviving=surviving, advantage=run.advantage)
    answer: dict[str, object] = {"view": values, **_state(run)}
    if query.text("member") is not None:
        tokenizer, why = run.tokenizer_or_why()
        answer["sample"] = tokens_json(
            found,
            place=(query.number("member", default=0), query.text("attempt") or ""),
            skip=query.number("skip", default=0),
            tokenizer=tokenizer,
            standing=(surviving, run.advantage),
        )
        answer["no_tokenizer"] = why
    return answer


def _outcomes_of(run: OpenRun, number: int) -> list[OutcomeRow]:
    """What is known of its outcomes; the index is given a moment, since it may just have begun."""
    deadline = Deadline.after(_MOMENT_S)
    while not (known := run.index.of_group(number)) and run.index.share_read < 1 and not deadline.expired:
        deadline.clock.wait(_LOOK_S)
    return known


def _state(run: OpenRun) -> dict[str, object]:
    return {"share_read": run.index.share_read, "is_full": run.index.is_full}
