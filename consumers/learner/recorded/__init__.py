"""Recorded mode: training again from the topics of an old run (docs/design/0010)."""
