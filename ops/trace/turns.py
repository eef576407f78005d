"""The turns of a sample with an environment, as hops.

Data in: a `Sample` that tells the times of its turns. Data out: hops, one behind the other, up to its end.
Invariants: times are of one process's monotonic clock, so they are laid out backwards from the end of the sample; what
is left before them are tries that failed.
Failure: `CodecError` when the times are no whole numbers of 4 bytes.
"""

from __future__ import annotations

from ops.trace.life import Hops
from schemas.packed import unpack_i32
from schemas.records import Sample


def add_turns(hops: Hops, sample: Sample, *, note: str) -> None:
    """See the module. `note` goes to the last turn of the model."""
    spent_ms = unpack_i32(sample.turn_ms).tolist()
    at_ms = float(sample.finished_unix_ms - sum(spent_ms))
    begun_ms, num_turns = float(sample.started_unix_ms), len(spent_ms) // 2
    if at_ms - begun_ms > len(spent_ms):  # more than rounding
        hops.add("is tried before, in vain", span=(begun_ms, at_ms), stage="rollout", who=sample.producer)
    for index, one_ms in enumerate(spent_ms):
        turn, is_model = index // 2 + 1, index % 2 == 1
        hops.add(
            f"turn {turn} is generated" if is_model else _environment_does(turn, num_turns=num_turns),
            span=(at_ms, at_ms + one_ms),
            stage="rollout" if is_model else "environment",
            who=sample.producer if is_model else sample.environment,
            note=note if is_model and turn == num_turns else "",
        )
        at_ms += one_ms


def _environment_does(turn: int, *, num_turns: int) -> str:
    if turn == 1:
        return "its environment is set up"
    return f"turn {turn - 1} is answered" if turn <= num_turns else f"turn {num_turns} is judged"
