"""The lines of figures: the title, lag, rates, weights, what was lost, commands and notices.

Data in: a picture and its measures. Data out: lines, not yet cut to a width.
Failure: none; unknown is `-`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ops.live.measures import Measures
from ops.live.picture import LagPicture, RunPicture
from ops.top.words import clock, number, padded, plain, size, span

_LEAST_VERSIONS = 0.1  # that are worth a word
_ROUTINE = frozenset({"publish", "pack", "heartbeat"})


def title(picture: RunPicture, *, width: int) -> Text:
    """Run, step, reward, age, and the time last; in a narrow window words go, never the time."""
    totals, facts, last = picture.totals, picture.facts, picture.last_step
    step = f"step {totals.step}" + ("" if facts.max_steps is None else f" of {facts.max_steps}")
    lineage = f"lineage {totals.lineage}"
    time = clock(picture.now_ms) if picture.is_live else f"ended {clock(picture.now_ms)}"
    forms = [[step, lineage, time], [step, time]]
    if last:
        mean, most = f"age {last.get('age_mean', 0.0):.1f}", f"{last.get('age_max', 0.0):.0f}"
        bound = None if facts.max_staleness is None else facts.max_staleness
        long, short = ("", "") if bound is None else (f" of {bound}", f"/{bound}")
        reward = f"reward {last.get('reward_mean', 0.0):.3f}"
        forms = [
            [step, lineage, reward, f"{mean}, max {most}{long}", time],
            [step, lineage, reward, f"{mean} max {most}{short}", time],
            [step, reward, f"{mean} max {most}{short}", time],
            [step, f"{mean}{short}", time],
            *forms[1:],
        ]
    name = plain(picture.run)
    fitting = next((form for form in forms if len(name) + 4 + len("  ".join(form)) <= width), forms[-1])
    text = "  ".join(fitting)
    if len(name) + 4 + len(text) > width:
        name = padded(name, max(8, width - len(text) - 4)).rstrip()
    return Text.assemble(Text(f" {name} ", style="bold reverse"), "  ", text)


def rates(picture: RunPicture, measures: Measures) -> Text:
    """How fast; all over the same last seconds."""
    per_s = picture.steps.per_s
    if per_s is None and measures.step_s:
        per_s = 1 / measures.step_s
    over = f", mean of {picture.steps.num}" if picture.steps.num > 1 else ""
    step = "- steps/s" if per_s is None else f"{number(per_s)} steps/s ({span(measures.step_s)} each{over})"
    made = f"{number(measures.samples_per_s)} samples/s made"
    trained = "" if measures.trained_per_s is None else f", {number(measures.trained_per_s)} trained"
    return _named("rates", f"{step}, {made}{trained}")


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
    parts = [f"{newest.version} is {span(ago_s)} old", f"served after {span(measures.serve_s)}"]
    if newest.num_bytes:
        speed = "" if measures.fetch_bytes_s is None else f" at {size(measures.fetch_bytes_s)}/s"
        parts.append(f"{size(newest.num_bytes)} {plain(newest.encoding)}{speed}")
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
    """The last ones that change something for people, newest first, with their reasons; not each wave of weights."""
    seen = [each for each in reversed(picture.commands) if each.kind not in _ROUTINE]
    for number_of, each in enumerate(seen):
        what = " ".join(part for part in (each.kind, each.target, each.version) if part)
        if each.replicas is not None:
            what += f" to {each.replicas}"
        name = "" if number_of else "command"
        yield _named(name, f"{clock(each.at_ms)} {plain(what)}: {plain(each.reason)}")


def notices(picture: RunPicture) -> Iterator[Text]:
    """The last ones, newest first."""
    replaced = {each.instance for each in picture.processes if each.is_replaced}
    for number_of, each in enumerate(reversed(picture.notices)):
        after = "; another has taken its place" if each.name == "stopped" and each.instance in replaced else ""
        yield _named("" if number_of else "notice", f"{clock(each.at_ms)} {plain(each.text)}{after}")


def _lag(lag: LagPicture) -> str:
    inside = [span(lag.seconds)] if lag.seconds is not None else []
    if lag.records and lag.records_per_s is not None and abs(lag.records_per_s) >= 1:
        inside.append(f"{'grows' if lag.records_per_s > 0 else 'falls'} {number(abs(round(lag.records_per_s)))}/s")
    if lag.versions is not None and lag.versions >= _LEAST_VERSIONS:
        is_engines = lag.group == "rollout"
        inside.append(
            f"engines {number(lag.versions)} behind" if is_engines else f"{number(lag.versions)} steps' worth"
        )
    name = plain(f"{lag.group} on {lag.topic}")
    return f"{name} {number(lag.records)}" + (f" ({', '.join(inside)})" if inside and lag.records else "")


def _named(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<8}", "dim"), text)
