"""The first files of a reward of one's own.

Role: `rlweave new reward NAME`.
Data in: a name and a folder. Data out: NAME.py and test_NAME.py, which run as they are.
Invariants, failure: those of `ops.scaffold.files`.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

from consumers.rewards.settings import check_reward_name
from ops.scaffold.files import write_plugin

_REWARD = Template('''"""The reward $name: 1 where the completion holds the reference answer, else 0."""

from __future__ import annotations

from consumers.rewards.api import Sample, answer, completion_text


def score(sample: Sample, *, ignore_case: bool = True) -> float:
    """A number; what is raised here is a failure of this sample, never a 0. Keyword arguments are options."""
    text, wanted = completion_text(sample), answer(sample)
    if ignore_case:
        text, wanted = text.lower(), wanted.lower()
    return float(wanted in text)
''')
_TEST = Template('''"""Tests of the reward $name: `pytest $test_file`."""

from __future__ import annotations

from pathlib import Path

from consumers.rewards.testing import sample, verdict_of

PLUGIN = f"{Path(__file__).with_name('$file')}:score"


def test_an_answer_that_is_there_scores_1() -> None:
    assert verdict_of(PLUGIN, sample("It is Paris.", answer="paris")).value == 1.0


def test_an_answer_that_is_not_there_scores_0() -> None:
    assert verdict_of(PLUGIN, sample("It is Rome.", answer="Paris")).value == 0.0


def test_options_come_from_the_run_file() -> None:
    assert verdict_of(PLUGIN, sample("It is Paris.", answer="paris"), ignore_case=False).value == 0.0


def test_without_a_reference_answer_it_is_a_failure_and_not_a_0() -> None:
    verdict = verdict_of(PLUGIN, sample("It is Paris."))
    assert verdict.value is None
    assert verdict.failure is not None
''')


def new_reward(name: str, *, folder: Path) -> tuple[Path, Path]:
    """Write the reward and its test; returns their paths.

    Raises:
        SettingsError: as `write_plugin`.
    """
    check_reward_name(name)
    return write_plugin(name, kind="reward", plugin=_REWARD, test=_TEST, folder=folder)
