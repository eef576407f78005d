"""As many processes that loop for ever as calls hang at a time, with the processor time that others leave.

Role: what is measured beside them is the most that scoring can keep of its speed while calls hang: the same loops, and
nothing of ours that has to find, hold, end and replace them. `python -m ops.bench.rewards.loops` is one of them.
Data in: how many. Data out: processor time.
Invariants: each leads a session of its own at the lowest share, as a held call does; none outlives who started it.
Failure: none.
"""

from __future__ import annotations

import subprocess
import sys

from consumers.rewards.worker import end_with_starter
from pipeline.priority import stand_back


class Loops:
    """Call `start`, then `close`."""

    def __init__(self, num: int) -> None:
        self._num = num
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Begin all."""
        for _ in range(self._num):
            command = [sys.executable, "-P", "-m", __name__]
            self.processes.append(subprocess.Popen(command, start_new_session=True))

    def close(self) -> None:
        """End all."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()


def main() -> None:
    """Loop."""
    end_with_starter()
    stand_back()
    while True:
        pass


if __name__ == "__main__":
    main()
