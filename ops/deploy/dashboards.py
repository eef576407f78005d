"""Writes the Grafana dashboards: `python -m ops.deploy.dashboards` after a change of `ops.deploy.panels`.

Role: JSON files that Grafana loads by provisioning; a test keeps them equal to what this makes.
Data in: `DASHBOARDS`. Data out: `ops/deploy/grafana/dashboards/UID.json`, in the model of Grafana 9 and later.
Failure: `OSError` when the folder cannot be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import orjson

from ops.deploy.panels import DASHBOARDS, Dashboard, Panel

FOLDER = Path(__file__).parent / "grafana" / "dashboards"
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_SOURCE: Json = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24  # of a panel, in Grafana's grid; a row is _COLUMNS wide


def model(dashboard: Dashboard) -> dict[str, Json]:
    """What Grafana reads."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["rlweave"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source_variable(), _run_variable()]},
        "panels": list(_panels(dashboard)),
    }


def files(folder: Path = FOLDER) -> dict[Path, bytes]:
    """Every dashboard file and its content."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return {folder / f"{each.uid}.json": orjson.dumps(model(each), option=options) for each in DASHBOARDS}


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    number, top = 0, 0
    for title, panels in dashboard.rows:
        number += 1
        place: Json = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            column, line = index % (_COLUMNS // _WIDTH), index // (_COLUMNS // _WIDTH)
            yield _graph(panel, number=number, x=column * _WIDTH, y=top + line * _HEIGHT)
        top += -(-len(panels) // (_COLUMNS // _WIDTH)) * _HEIGHT


def _graph(panel: Panel, *, number: int, x: int, y: int) -> Json:
    targets: list[Json] = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0 if panel.unit != "short" else None}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _source_variable() -> Json:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _run_variable() -> Json:
    query = "label_values(rlweave_turn_age_s, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "run"},
        "refresh": 2,
        "sort": 1,
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_bytes(content)
