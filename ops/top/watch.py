"""Shows a run until somebody has seen enough: on the terminal's other screen, or once as text.

Data in: a follower; keys. Data out: the terminal.
Invariants: the terminal is given back as it was, however this ends; `q` and Ctrl-C end it; a broker that does not
answer stops the picture, never this.
Failure: errors of the log at the first turn.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console, Group
from rich.live import Live

from ops.live.follower import Follower
from ops.top.screen import screen

EVERY_S = 0.5
LOOK_BACK = 5_000  # events of a live run, some minutes; its totals are of the whole run
SPANS_S = 75.0  # more than the strip shows
PIPE_COLUMNS = 100
_CATCH_UP_S = 30.0
_KEYS = "q or Ctrl-C ends"


def show_once(follower: Follower, console: Console) -> None:
    """One picture, of what is there now.

    Raises:
        LogError: the topics cannot be read.
    """
    follower.catch_up(limit_s=_CATCH_UP_S)
    for line in screen(follower.picture(spans_s=SPANS_S), width=console.width):
        console.print(line, soft_wrap=True)


def watch(follower: Follower, console: Console) -> None:
    """Pictures, until a key says that it is enough.

    Raises:
        LogError: the topics cannot be read.
    """
    follower.turn()
    with _ends_in_order(), _keys() as keyed, Live(console=console, screen=True, auto_refresh=False) as live:
        shown_s = float("-inf")
        while True:
            follower.turn(limit_s=0.2)
            if time.monotonic() >= shown_s + EVERY_S:
                shown_s = time.monotonic()
                picture = follower.picture(spans_s=SPANS_S)
                lines = screen(picture, width=console.width, height=console.height, keys=_KEYS)
                live.update(Group(*lines), refresh=True)
            if "q" in next(keyed):
                return


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """A signal that ends the process gives the terminal back first."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def _keys() -> Iterator[Iterator[str]]:
    """Typed letters as they come, each `next` waiting a moment for some; a terminal that is none gives none."""
    if not sys.stdin.isatty():
        yield _none()
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield _typed(number)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _typed(number: int) -> Iterator[str]:
    while True:
        ready, _, _ = select.select([number], [], [], 0.1)
        yield os.read(number, 64).decode(errors="replace") if ready else ""


def _none() -> Iterator[str]:
    while True:
        time.sleep(0.1)
        yield ""
