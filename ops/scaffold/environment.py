"""The first files of an environment of one's own.

Role: `rlweave new environment NAME`.
Data in: a name and a folder. Data out: NAME.py and test_NAME.py, which run as they are.
Invariants, failure: those of `ops.scaffold.files`.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

from ops.scaffold.files import write_plugin

_ENVIRONMENT = Template('''"""The environment $name: think of a number; a guess is answered with how far off it is."""

from __future__ import annotations

from random import Random

from pipeline.environments.base import Action, Observation, Task


class $title:
    """One trajectory. Keyword arguments are `environment.options`."""

    def __init__(self, *, most: int = 3) -> None:
        self._most = most
        self._number = 0

    async def reset(self, task: Task) -> Observation:
        """Begin; `text` would be read after the prompt. The seed is the same for all members of a group."""
        self._number = Random(task.seed).randint(0, self._most)
        return Observation(facts={"number": str(self._number)})

    async def step(self, action: Action) -> Observation:
        """Answer what the model said. What is raised here begins the trajectory anew, and is never a reward."""
        if not action.text.isdecimal():
            return Observation(text="?", reward=-0.1)
        distance = abs(int(action.text) - self._number)
        if distance == 0:
            return Observation(reward=1.0, done=True)
        return Observation(text=f"{distance}+", reward=-0.1)

    async def close(self) -> None:
        """Free what is held; called once, whatever happened."""
''')
_TEST = Template('''"""Tests of the environment $name: `pytest $test_file`."""

from __future__ import annotations

from pathlib import Path

from pipeline.environments.base import Environment
from pipeline.environments.opening import open_environment
from pipeline.environments.settings import EnvironmentSettings
from pipeline.environments.testing import play

PLUGIN = f"{Path(__file__).with_name('$file')}:$title"


def environment(**options: int) -> Environment:
    """One as a run makes it."""
    return open_environment(EnvironmentSettings(plugin=PLUGIN, options=dict(options)))()


def test_the_distance_leads_to_the_number() -> None:
    number = int(play(environment())[0].facts["number"])
    begin, first, second = play(environment(), "9", str(number))
    assert (begin.text, first.text, first.reward) == ("", f"{9 - number}+", -0.1)
    assert (second.reward, second.done) == (1.0, True)


def test_what_is_no_number_costs_a_turn() -> None:
    said = play(environment(), "none")[1]
    assert (said.text, said.reward, said.done) == ("?", -0.1, False)


def test_all_members_of_a_group_look_for_the_same_number() -> None:
    assert play(environment())[0].facts == play(environment())[0].facts


def test_options_come_from_the_run_file() -> None:
    assert play(environment(most=0))[0].facts == {"number": "0"}
''')


def new_environment(name: str, *, folder: Path) -> tuple[Path, Path]:
    """Write the environment and its test; returns their paths.

    Raises:
        SettingsError: as `write_plugin`.
    """
    return write_plugin(name, kind="environment", plugin=_ENVIRONMENT, test=_TEST, folder=folder)
