"""A comparison of two rewards, for people and for machines.

Data in: `Compared`. Data out: lines, or values for JSON.
Invariants: text that a model wrote is printed in one line without control characters, and cut.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from ops.replay.summaries import printable
from ops.rewards.collect import Compared
from ops.rewards.compare import Scatter, Side

_TEXT_CHARS = 400
_SHADES = " .:-=+*#%@"


def lines_of(compared: Compared) -> Iterator[str]:
    """For a terminal."""
    found = compared.comparison
    for letter, side, mean in (("A", found.a, found.mean_a), ("B", found.b, found.mean_b)):
        yield f"{letter}  {_side(side, mean)}"
    yield ""
    yield f"both gave a value   {found.num_both} samples"
    yield f"equal               {_share(found.equal_share)}"
    yield f"same order          {_share(found.order_share)} of {found.num_ordered} pairs within groups"
    yield f"correlation         Pearson {_number(found.pearson)}, Spearman {_number(found.spearman)}"
    if found.scatter is not None:
        yield ""
        yield from _scatter(found.scatter)
    if found.worst:
        yield ""
        yield "worst disagreements"
    for each in found.worst:
        group, member, attempt = each.key
        yield f"  sample {group}/{member}  A {each.a:g}  B {each.b:g}  attempt {attempt}"
        sample = compared.samples.get(each.key)
        if sample is None:
            yield "    its text is no longer in the log"
            continue
        yield f"    prompt      {_cut(sample.prompt_text)}"
        yield f"    completion  {_cut(sample.completion_text)}"
        if sample.answer is not None:
            yield f"    answer      {_cut(sample.answer)}"


def as_json(compared: Compared) -> dict[str, object]:
    """Plain values."""
    found = compared.comparison
    return {
        "a": _side_values(found.a, found.mean_a),
        "b": _side_values(found.b, found.mean_b),
        "num_both": found.num_both,
        "equal_share": found.equal_share,
        "order_share": found.order_share,
        "num_ordered_pairs": found.num_ordered,
        "pearson": found.pearson,
        "spearman": found.spearman,
        "scatter": None if found.scatter is None else asdict(found.scatter),
        "worst": [_worst_values(compared, at) for at in range(len(found.worst))],
    }


def _worst_values(compared: Compared, at: int) -> dict[str, object]:
    each = compared.comparison.worst[at]
    sample = compared.samples.get(each.key)
    return {
        "group": each.key[0],
        "member": each.key[1],
        "attempt": each.key[2],
        "a": each.a,
        "b": each.b,
        "prompt": None if sample is None else sample.prompt_text,
        "completion": None if sample is None else sample.completion_text,
        "answer": None if sample is None else sample.answer,
    }


def _side_values(side: Side, mean: float | None) -> dict[str, object]:
    return {
        "name": side.name,
        "num_values": len(side.values),
        "num_failures": len(side.failures),
        "failures": side.failure_words,
        "mean_of_both": mean,
    }


def _side(side: Side, mean: float | None) -> str:
    words = ", ".join(f"{word} {num}" for word, num in side.failure_words.items())
    failed = f"{len(side.failures)} failures ({words})" if side.failures else "no failure"
    return f"{side.name}: {len(side.values)} values, {failed}, mean {_number(mean)}"


def _scatter(scatter: Scatter) -> Iterator[str]:
    most = max(max(row) for row in scatter.counts)
    width = 2 * len(scatter.counts[0])
    yield f"B up, A to the right; the darkest field holds {most} samples"
    for at, row in enumerate(scatter.counts):
        edge = {0: scatter.high_b, len(scatter.counts) - 1: scatter.low_b}.get(at)
        label = "" if edge is None else f"{edge:g}"
        yield f"{label:>9.9} |{''.join(_shade(count, most) * 2 for count in row)}|"
    low, high = f"{scatter.low_a:g}", f"{scatter.high_a:g}"
    yield " " * 11 + low + high.rjust(max(1, width - len(low)))


def _shade(count: int, most: int) -> str:
    """Blank for none; any count shows."""
    return " " if count == 0 else _SHADES[1 + (len(_SHADES) - 2) * count // most]


def _cut(text: str) -> str:
    plain = " ".join(printable(text).split())
    return plain if len(plain) <= _TEXT_CHARS else plain[:_TEXT_CHARS] + " ..."


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
