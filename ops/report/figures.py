"""The figures of a run as SVG text that can stand inside an HTML page.

Data in: what was collected. Data out: `Figure`s with a title, a description and SVG.
Invariants: nothing in the SVG refers to anything outside it; colours are CSS variables, so one figure serves light and
dark; ids are unique over all figures of a page.
Failure: `SettingsError` when matplotlib is not installed.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from importlib.resources import as_file, files

from ops.report.collect import RunFacts
from ops.report.marks import COLOURS, FOREGROUND, GRID, MUTED
from ops.report.plans import PLANS, Plan
from schemas.errors import SettingsError

# Stand-ins that matplotlib draws with (see paper.mplstyle), and the CSS variables that take their place.
_VARIABLES = {FOREGROUND: "--fg", MUTED: "--muted", GRID: "--grid"} | {
    colour: f"--c{index}" for index, colour in enumerate(COLOURS)
}
_SIZE_INCH = (5.4, 3.1)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure."""

    section: str  # heading under which it stands
    name: str  # a word, unique on the page
    title: str
    description: str
    svg: str


def figures(facts: RunFacts) -> list[Figure]:
    """All figures; that of evaluation sets only where there are some.

    Raises:
        SettingsError: matplotlib is missing.
    """
    try:
        from matplotlib import style  # noqa: PLC0415 - slow to import, and an extra
    except ImportError as error:
        raise SettingsError(
            "the report needs matplotlib, which is not installed; no report was written",
            hint="install the extra: pip install 'rlweave[report]'",
        ) from error
    with as_file(files("ops.report") / "paper.mplstyle") as path, style.context(path):
        return [_draw(plan, facts) for plan in PLANS if plan.name != "evaluation" or facts.evaluations]


def _draw(plan: Plan, facts: RunFacts) -> Figure:
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - see `figures`

    canvas = Canvas(figsize=_SIZE_INCH, layout="constrained")
    plan.draw(canvas.add_subplot(), facts)
    out = io.StringIO()
    canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return Figure(
        section=plan.section,
        name=plan.name,
        title=plan.title,
        description=plan.description,
        svg=inline_svg(out.getvalue(), plan=plan),
    )


def inline_svg(text: str, *, plan: Plan) -> str:
    """SVG for inside HTML: no prologue or metadata, own ids, CSS colours, title and description for screen readers."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head_end = text.index(">")
    view_box = re.search(r'viewBox="[^"]+"', text)
    body = text[head_end + 1 :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{plan.name}-\1"', body)
    body = re.sub(r"url\(#", f"url(#{plan.name}-", body)
    body = re.sub(r'(?:xlink:)?href="#', f'href="#{plan.name}-', body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    return (
        f'<svg {view_box.group() if view_box else ""} role="img" '
        f'aria-labelledby="{plan.name}-title {plan.name}-desc">'
        f'<title id="{plan.name}-title">{plan.title}</title>'
        f'<desc id="{plan.name}-desc">{plan.description}</desc>{body}'
    )
