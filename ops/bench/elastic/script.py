"""What the processes of the benchmark are to do now: a small file that they look at.

Role: the benchmark writes it; engines and the policy read it.
Data in and out: JSON.
Invariants: replaced as a whole, so nobody reads half of it.
Failure: none; a reader that finds no file goes by the defaults.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

_FILE, _PLUGINS = "script.json", "plugins.py"
_PLUGINS_TEXT = '''"""What the run file of this benchmark names."""

from pathlib import Path

from ops.bench.elastic.engine import paced
from ops.bench.elastic.policy import following

engine = paced(Path(__file__).parent)
decide = following(Path(__file__).parent)
'''


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is the case now."""

    sequence_s: float = 1.0  # an engine needs for a sequence, whatever else it holds
    is_lent: bool = False  # a slot of rollout is with the learner


class Prompter:
    """The file, for those that read it often.

    Args:
        folder: it is in.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._read_ns = 0
        self._script = Script()

    def now(self) -> Script:
        """What is the case."""
        try:
            at_ns = self._path.stat().st_mtime_ns
            if at_ns != self._read_ns:
                self._script, self._read_ns = Script(**orjson.loads(self._path.read_bytes())), at_ns
        except OSError:
            pass
        return self._script

    def set(self, script: Script) -> None:
        """Say what is the case from now on."""
        aside = self._path.with_suffix(".tmp")
        aside.write_bytes(orjson.dumps(asdict(script)))
        aside.replace(self._path)


def write_plugins(folder: Path) -> Path:
    """The file in which a run finds its engine and its policy."""
    path = folder / _PLUGINS
    path.write_text(_PLUGINS_TEXT)
    return path
