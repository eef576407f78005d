"""Hypothesis without a time limit per example (the machine may be busy) and without a folder of its own."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rlweave", deadline=None, database=None, print_blob=True)
settings.load_profile("rlweave")
