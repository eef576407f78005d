"""Writes the golden bytes of schema versions that have none yet: `python -m tests.unit.schemas.make_golden`.

A golden file that exists is never written again: it stands for bytes that lie on somebody's topics.
"""

from __future__ import annotations

import json
from pathlib import Path

from schemas.codec import encode
from schemas.registry import directory_of, shipped
from tests.unit.schemas.examples import EXAMPLES, readable

GOLDEN = Path(__file__).parent / "golden"


def main() -> None:
    for record in EXAMPLES:
        name = type(record).__name__
        path = GOLDEN / f"{directory_of(name)}_v{shipped().current_of(name).number}.bin"
        if not path.exists():
            path.write_bytes(encode(record))
            path.with_suffix(".json").write_text(json.dumps(readable(record), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
