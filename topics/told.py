"""Warnings that are said once: what is asked again and again fails again and again for one cause.

Data in: a subject, why it fails, the line. Data out: the line in the log, once per subject and cause until the subject
works again.
Failure: none.
"""

from __future__ import annotations

import logging


class Told:
    """What was said already; one per object that asks."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._causes: dict[str, set[str]] = {}

    def warn(self, subject: str, cause: str, *, text: str) -> None:
        """Log `text` as a warning unless it was said of this subject for this cause."""
        causes = self._causes.setdefault(subject, set())
        if cause not in causes:
            causes.add(cause)
            self._log.warning("%s", text)

    def works(self, subject: str) -> None:
        """From now on its causes are news again."""
        self._causes.pop(subject, None)
