"""From the settings of an environment to a factory.

Role: loads the plug-in.
Data in: `EnvironmentSettings`. Data out: what makes one environment per trajectory.
Invariants: a plug-in is tried once at the start, so that what it lacks is said then and not in every trajectory.
Failure: `PluginError` for a name that leads nowhere or to something else, `SettingsError` for options it does not take.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import cast

from pipeline.environments.base import EnvironmentFactory
from pipeline.environments.settings import EnvironmentSettings
from pipeline.plugins import load_plugin, loading
from schemas.errors import PluginError, SettingsError

GROUP = "rlweave.environments"
BUILTINS = {
    "guess": "pipeline.environments.guess:GuessNumber",
    "calculator": "pipeline.environments.calculator:Calculator",
}
_METHODS = ("reset", "step", "close")


def open_environment(settings: EnvironmentSettings) -> EnvironmentFactory:
    """The factory of a run's environments.

    Raises:
        PluginError: see the module.
        SettingsError: see the module.
    """
    found = load_plugin(settings.plugin, group=GROUP, builtins=BUILTINS)
    if not callable(found):
        raise PluginError(f"environment plug-in {settings.plugin!r} is a {type(found).__name__}, nothing to be called")
    factory = partial(found, **settings.options)
    with loading(f"{settings.plugin!r} of the environment could not be made"):
        try:
            made: object = factory()
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"environment plug-in {settings.plugin!r} refuses its options {sorted(settings.options)}: {error}",
                hint="environment.options are its keyword arguments",
            ) from error
    wrong = [name for name in _METHODS if not inspect.iscoroutinefunction(getattr(made, name, None))]
    if wrong:
        raise PluginError(
            f"environment plug-in {settings.plugin!r} gave a {type(made).__name__} without async {', '.join(wrong)}",
            hint="an environment has async methods reset(task), step(action) and close()",
        )
    return cast("EnvironmentFactory", factory)
