"""Scores from a service of your own over HTTP.

Role: POST `{"samples": [...]}`, answered by `{"rewards": [...]}` with one entry per sample in the same order: a number,
or `{"failure": "why"}`. A sample is group, member, attempt, prompt, completion, answer, metadata, finish_reason.
Invariants: async, so many requests are in flight and none keeps a thread; an entry that is no number is a failure of
that sample alone; what a busy service says is tried again (`consumers.rewards.http_client`).
Failure: as there; `ValueError` for an answer of another form.
"""

from __future__ import annotations

from collections.abc import Sequence

from consumers.rewards.api import Sample
from consumers.rewards.http_client import JsonClient


class RemoteHttp:
    """What the service at `url` says.

    Raises:
        ValueError: the options cannot work.
    """

    name = "remote_http"

    def __init__(self, *, url: str, version: str = "1", token_env: str = "") -> None:
        self._client = JsonClient(url, token_env=token_env)
        self.version = version  # of the service: state another one when it scores differently

    async def score_batch(self, samples: Sequence[Sample]) -> list[object]:
        """One value per sample, or the error of it.

        Raises:
            Transient, ValueError: of the request.
        """
        answer = await self._client.post({"samples": [_said_of(sample) for sample in samples]})
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list) or len(rewards) != len(samples):
            raise ValueError(f'the service must answer {{"rewards": [{len(samples)} entries]}}, got {answer!r:.200}')
        return [_value(entry) for entry in rewards]

    async def aclose(self) -> None:
        """End the connections."""
        await self._client.close()


def _said_of(sample: Sample) -> dict[str, object]:
    return {
        "group": sample.group,
        "member": sample.member,
        "attempt": sample.attempt,
        "prompt": sample.prompt_text,
        "completion": sample.completion_text,
        "answer": sample.answer,
        "metadata": dict(sample.metadata),
        "finish_reason": sample.finish_reason,
    }


def _value(entry: object) -> object:
    if isinstance(entry, dict) and "failure" in entry:
        return ValueError(str(entry["failure"]))
    return entry
