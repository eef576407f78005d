"""From a plug-in spec and its options to something that scores.

Role: the one place that knows which forms a plug-in may have (see `consumers.rewards.api`).
Data in and out: settings in; a `Scorer` out, whose `call` takes samples and returns one raw value per sample.
Invariants: options are checked against the plug-in's own parameters before anything runs.
Failure: `PluginError` for a form that is none, `SettingsError` for options that do not fit.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from consumers.rewards.builtin import BUILTINS
from consumers.rewards.call import AsyncCall, Call
from consumers.rewards.settings import RewardSettings
from pipeline.plugins import load_plugin, loading
from schemas.errors import PluginError, SettingsError
from schemas.records import Sample

GROUP = "rlweave.rewards"
_EXTRAS = {"math_verify": "math", "neural": "torch"}  # of built-in rewards; of others the one most often missing
Plain: TypeAlias = Callable[..., object]
AsyncClose: TypeAlias = Callable[[], Awaitable[object]]


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A plug-in, ready. Exactly one of `call` and `async_call` is set."""

    version: str
    batches: bool  # takes more than one sample at a time
    call: Call | None = None
    async_call: AsyncCall | None = None
    max_workers: int | None = None  # most processes or threads that it is to be loaded in
    aclose: AsyncClose | None = None  # of an async one: called when nothing is scored any more

    def at_most(self, num_workers: int) -> int:
        """How many of these workers are used."""
        return num_workers if self.max_workers is None else min(num_workers, self.max_workers)


def load_scorer(settings: RewardSettings) -> Scorer:
    """Load a reward's plug-in and give it its options.

    Raises:
        PluginError: it does not exist, cannot be imported or made, or has none of the forms.
        SettingsError: options it does not know, or lacks.
    """
    spec = settings.plugin
    found = load_plugin(spec, group=GROUP, builtins=BUILTINS)
    made = _with_options(found, settings.options, spec=spec)
    return replace(
        _scorer_of(made, spec=spec, version=_version_of(found, made)),
        max_workers=_max_workers(made, spec=spec),
        aclose=cast("AsyncClose | None", _method(made, "aclose")),
    )


def _scorer_of(made: object, *, spec: str, version: str) -> Scorer:
    batch = _method(made, "score_batch")
    if batch is not None:
        return _batching(batch, version=version)
    single = _method(made, "score") or (made if callable(made) else None)
    if single is None or not _takes_sample(single):
        raise PluginError(
            f"plug-in {spec!r} is a {type(made).__name__} that scores nothing",
            hint="give a function score(sample) -> float, or a class with score(sample) or score_batch(samples)",
        )
    return _single(single, version=version)


def version_with_options(version: str, options: Mapping[str, object]) -> str:
    """What records call a plug-in's version: with options, a digest of them is added, so that two sets can be told
    apart; without any it is the version alone, as in records of older releases."""
    if not options:
        return version
    said = json.dumps(dict(options), sort_keys=True)
    return f"{version}+opt-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def fingerprint(name: str, settings: RewardSettings, *, version: str) -> str:
    """What must be equal among the members of one consumer group: 16 hex digits."""
    said = [name, settings.plugin, version, settings.options, settings.weight]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _with_options(found: object, options: Mapping[str, object], *, spec: str) -> object:
    if not callable(found):
        if options:
            raise SettingsError(f"plug-in {spec!r} is an object already made, it takes no options")
        return found
    is_scorer = not inspect.isclass(found) and _takes_sample(found)
    _check_options(found, options, spec=spec, first=(object(),) if is_scorer else ())
    if is_scorer:
        return functools.partial(found, **options) if options else found
    return _make(found, options, spec=spec)


def _make(factory: Plain, options: Mapping[str, object], *, spec: str) -> object:
    missing = f"an extra may be missing, for example `pip install 'rlweave[{_EXTRAS.get(spec, 'tasks')}]'`"
    with loading(f"{spec!r} could not be made with the options {dict(options)}", hint_missing=missing):
        return factory(**options)


def _check_options(found: Plain, options: Mapping[str, object], *, spec: str, first: tuple[object, ...]) -> None:
    signature = inspect.signature(found)
    try:
        signature.bind(*first, **options)
    except TypeError as error:
        known = [one.name for one in list(signature.parameters.values())[len(first) :]]
        raise SettingsError(
            f"options {sorted(options)} do not fit plug-in {spec!r}: {error}",
            hint=f"it takes: {', '.join(known) or 'no options'}",
        ) from error


def _takes_sample(call: Plain) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in kinds for one in inspect.signature(call).parameters.values())


def _method(made: object, name: str) -> Plain | None:
    found: object = getattr(made, name, None)
    return cast("Plain", found) if callable(found) else None


def _is_async(call: Plain) -> bool:
    plain = call.func if isinstance(call, functools.partial) else call
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


def _batching(batch: Plain, *, version: str) -> Scorer:
    if _is_async(batch):
        return Scorer(version=version, batches=True, async_call=cast("AsyncCall", batch))
    return Scorer(version=version, batches=True, call=cast("Call", batch))


def _single(score: Plain, *, version: str) -> Scorer:
    if _is_async(score):

        async def each_async(samples: Sequence[Sample]) -> Sequence[object]:
            return [await cast("Awaitable[object]", score(sample)) for sample in samples]

        return Scorer(version=version, batches=False, async_call=each_async)
    return Scorer(version=version, batches=False, call=lambda samples: [score(sample) for sample in samples])


def _max_workers(made: object, *, spec: str) -> int | None:
    stated: object = getattr(made, "max_workers", None)
    if stated is None or (isinstance(stated, int) and not isinstance(stated, bool) and stated > 0):
        return stated
    raise PluginError(f"plug-in {spec!r}: max_workers = {stated!r} is no number of processes")


def _version_of(found: object, made: object) -> str:
    """The version the plug-in states, else a digest of its source, so that an edit shows in the records."""
    stated: object = getattr(made, "version", getattr(found, "version", None))  # a function's, behind its options, too
    if stated is not None and not callable(stated):
        return str(stated)[:64]
    target = found if inspect.isclass(found) or inspect.isfunction(found) else type(found)
    try:
        source = inspect.getsource(inspect.getmodule(target) or target)
    except (OSError, TypeError):
        return "unknown"
    return "src-" + hashlib.sha256(source.encode()).hexdigest()[:12]
