"""The numbers above the page, of one picture.

Role: what the tiles show and what a curve's legend says of now, so that one page gives one reading: groups and rates
are those the verdict is told from (`ops.live.measures`).
Data in: `RunPicture`. Data out: plain values for JSON.
Invariants: of a run that goes on rates are over the last steps and heartbeats; of one that ended the whole run's;
None means unknown.
Failure: none.
"""

from __future__ import annotations

from ops.live.crew import told
from ops.live.measures import measures_of
from ops.live.picture import RunPicture, SeriesPicture


def head_of(picture: RunPicture) -> dict[str, object]:
    """The part `head`; its `values` are by the name of the series that they are the newest word of."""
    return {
        "run": picture.run,
        "now_ms": picture.now_ms,
        "is_live": picture.is_live,
        "share_read": picture.share_read,
        "window_s": picture.window_s,
        "totals": picture.totals,
        "facts": picture.facts,
        "afterwards": told(picture.afterwards),
        "last_step": picture.last_step,
        "values": _values(picture) if picture.is_live else _means(picture),
    }


def _values(picture: RunPicture) -> dict[str, float | None]:
    measures = measures_of(picture)
    return {
        "open_groups": measures.open_groups,
        "ready_groups": measures.ready_groups,
        "credit_groups": measures.credit,
        "trained_per_s": measures.trained_per_s,
        "samples_per_s": measures.samples_per_s,
        "tokens_per_s": measures.tokens_per_s,
    }


def _means(picture: RunPicture) -> dict[str, float | None]:
    """Samples over time, as the mean of steps' rates would count short steps too much."""
    began_ms = _began_ms(picture.series.get("trained_per_s"))
    passed_s = None if began_ms is None else (picture.now_ms - began_ms) / 1000
    tokens = picture.series.get("tokens_per_s")
    values = [] if tokens is None else [value for value in tokens.values if value is not None]
    return {
        "trained_per_s": picture.totals.trained / passed_s if passed_s and passed_s > 0 else None,
        "tokens_per_s": sum(values) / len(values) if values else None,
    }


def _began_ms(series: SeriesPicture | None) -> int | None:
    if series is None:
        return None
    first = next((index for index, value in enumerate(series.values) if value is not None), None)
    return None if first is None else series.began_ms + first * series.bin_ms
