"""Runs the command line in a process whose wall clock is libfaketime's; `ops.chaos.sleeping` says what it mends."""

from __future__ import annotations

import time

from ops.chaos.sleeping import sleep_for
from ops.cli.main import main

if __name__ == "__main__":
    time.sleep = sleep_for
    main()
