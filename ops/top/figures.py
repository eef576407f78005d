"""The lines of figures: the title, lag, rates, weights, what was lost, commands and notices.

Data in: a picture and its measures. Data out: lines, not yet cut to a width.
Failure: none; unknown is `-`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ops.live.measures import Measures
from ops.live.picture import LagPicture, RunPicture
from ops.top.words import clock, number, plain, size, span


def title(picture: RunPicture) -> Text:
    """Run, step, reward, age."""
    totals, facts, last = picture.totals, picture.facts, picture.last_step
    step = f"step {totals.step}" + ("" if facts.max_steps is None else f" of {facts.max_steps}")
    parts = [step, f"lineage {totals.lineage}"]
    if last:
        parts.append(f"reward {last.get('reward_mean', 0.0):.3f}")
        bound = "" if facts.max_staleness is None else f" of {facts.max_staleness}"
        parts.append(f"age {last.get('age_mean', 0.0):.1f}, max {last.get('age_max', 0.0):.0f}{bound}")
    parts.append(clock(picture.now_ms) if picture.is_live else f"ended {clock(picture.now_ms)}")
    line = Text(f" {plain(picture.run)} ", style="bold reverse")
    return Text.assemble(line, "  ", "  ".join(parts))


def rates(measures: Measures) -> Text:
    """How fast."""
    step = "-" if measures.step_s is None else f"{number(1 / measures.step_s)} steps/s ({span(measures.step_s)} each)"
    made = f"{number(measures.samples_per_s)} samples/s, {number(measures.tokens_per_s)} tokens/s"
    return _named("rates", f"{step}, {made}, {number(measures.groups_per_s)} groups/s")


def lag(picture: RunPicture) -> Text | None:
    """How far each consumer group is behind; None: nobody has measured it."""
    if not picture.lag:
        return None
    return _named("lag", "; ".join(_lag(each) for each in picture.lag))


def weights(picture: RunPicture, measures: Measures) -> Text | None:
    """The newest version, and how long versions take; None: there is none."""
    published = [each for each in picture.versions if each.published_ms is not None]
    if not published:
        return None
    newest = published[-1]
    ago_s = (picture.now_ms - (newest.published_ms or 0)) / 1000
    parts = [f"{newest.version} published {span(ago_s)} ago", f"served {span(measures.serve_s)} after"]
    if newest.num_bytes:
        parts.append(f"{size(newest.num_bytes)} {plain(newest.encoding)}")
    if measures.fetch_bytes_s is not None:
        parts.append(f"{size(measures.fetch_bytes_s)}/s in a fetch")
    return _named("weights", ", ".join(parts))


def lost(picture: RunPicture) -> Text:
    """Ids that were dropped or failed, by reason."""
    totals = picture.totals
    whole = totals.trained + totals.dropped + totals.failed
    if not picture.drops:
        return _named("lost", f"none of {whole:,} ids")
    reasons = ", ".join(f"{plain(reason) or 'no reason'} {num:,}" for reason, num in picture.drops.items())
    share = (totals.dropped + totals.failed) / whole if whole else 0.0
    return _named("lost", f"{totals.dropped + totals.failed:,} of {whole:,} ids ({share:.1%}): {reasons}")


def commands(picture: RunPicture) -> Iterator[Text]:
    """The last ones, newest first, with their reasons."""
    for number_of, each in enumerate(reversed(picture.commands)):
        what = " ".join(part for part in (each.kind, each.target, each.version) if part)
        if each.replicas is not None:
            what += f" to {each.replicas}"
        name = "" if number_of else "command"
        yield _named(name, f"{clock(each.at_ms)} {plain(what)}: {plain(each.reason)}")


def notices(picture: RunPicture) -> Iterator[Text]:
    """The last ones, newest first."""
    for number_of, each in enumerate(reversed(picture.notices)):
        yield _named("" if number_of else "notice", f"{clock(each.at_ms)} {plain(each.text)}")


def _lag(lag: LagPicture) -> str:
    inside = [f"{number(lag.seconds)} s"] if lag.seconds is not None else []
    if lag.records_per_s is not None and abs(lag.records_per_s) >= 1:
        inside.append(f"{lag.records_per_s:+.0f}/s")
    if lag.versions is not None:
        inside.append(f"{number(lag.versions)} versions")
    name = plain(f"{lag.group} on {lag.topic}")
    return f"{name} {number(lag.records)}" + (f" ({', '.join(inside)})" if inside else "")


def _named(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<8}", "dim"), text)
