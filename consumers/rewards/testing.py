"""What a test of a reward needs: a sample, and what the consumer would make of it.

Role: for the tests of people who write rewards; the reward goes through the same loading and judging as in a run.
Data in and out: a text and a reference answer in, a `Sample` out; a plug-in spec and samples in, `Verdict`s out.
Invariants: no broker, no process; the plug-in runs in the test's own thread, so a debugger sees it.
Failure: `PluginError` and `SettingsError` as of `consumers.rewards.plugin`; what the reward raises is a failure of the
verdict, as in a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from consumers.rewards import verdict
from consumers.rewards.call import call_now, call_within
from consumers.rewards.plugin import Scorer, load_scorer
from consumers.rewards.settings import OptionValue, RewardSettings
from consumers.rewards.verdict import Verdict
from schemas.packed import pack_i32, pack_u8
from schemas.records import Sample, SamplingParams

__all__ = ["Verdict", "sample", "verdict_of", "verdicts_of"]


def sample(
    completion: str,
    *,
    answer: str | None = None,
    prompt: str = "",
    metadata: Mapping[str, str] | None = None,
    num_tokens: int | None = None,
    finish_reason: str = "stop",
) -> Sample:
    """A sample as a rollout would write it.

    Args:
        num_tokens: completion tokens; None: one per word.
    """
    num = len(completion.split()) if num_tokens is None else num_tokens
    return Sample(
        run="test",
        group=0,
        member=0,
        attempt="a",
        producer="test",
        prompt_text=prompt,
        completion_text=completion,
        completion_tokens=pack_i32(list(range(num))),
        loss_mask=pack_u8([1] * num),
        sampling=SamplingParams(),
        seed=0,
        answer=answer,
        metadata={} if metadata is None else dict(metadata),
        finish_reason=finish_reason,
        started_unix_ms=0,
        finished_unix_ms=0,
    )


def verdict_of(plugin: str, scored: Sample, **options: OptionValue) -> Verdict:
    """What a reward says of one sample: `value`, or `failure` and why.

    Args:
        plugin: as in the run file: a built-in name, `module:attr` or `file.py:attr`.
        options: of the plug-in.

    Raises:
        PluginError, SettingsError: it cannot be loaded, or not with these options.
    """
    (found,) = verdicts_of(plugin, [scored], **options)
    return found


def verdicts_of(plugin: str, samples: Sequence[Sample], **options: OptionValue) -> list[Verdict]:
    """As `verdict_of`, of several samples in one call where the reward takes batches.

    Raises:
        PluginError, SettingsError: as `verdict_of`.
    """
    settings = RewardSettings(plugin=plugin, options=options)
    scorer = load_scorer(settings)
    batches = [samples] if scorer.batches else [[each] for each in samples]
    return [found for batch in batches for found in _call(scorer, batch, limit_s=settings.timeout_s)]


def _call(scorer: Scorer, batch: Sequence[Sample], *, limit_s: float) -> Sequence[Verdict]:
    if scorer.call is not None:
        answer = call_now(scorer.call, batch)
    elif scorer.async_call is not None:
        answer = asyncio.run(call_within(scorer.async_call, batch, limit_s=limit_s))
    else:
        raise ValueError("a scorer has a call, sync or async")
    if answer.trouble is None:
        return answer.verdicts
    return [verdict.of_trouble(answer.trouble, num_retries=0)] * len(batch)
