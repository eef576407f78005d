"""What one member said and heard, turn by turn, and the one completion it becomes.

Role: the bookkeeping of a trajectory, without engine and environment.
Data in: generations, and the environment's answers as tokens. Data out: the request of the next turn; at the end one
`Generation`, and what a sample says of its turns.
Invariants: a turn is what the environment said before it, then what the model said, so the last token is the model's.
The environment's tokens have mask 0 and log-probability 0; they belong to the version that read them, the one of the
first token after them, so the oldest version of the sample is the oldest that made a token of it (promise 6).
Each turn draws with a seed of its own: the same one would draw the same numbers again.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.engines.base import Generation, GenerationRequest, LogprobArray, TokenArray
from pipeline.environments.base import Observation
from pipeline.version_runs import join_runs
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import Sample, VersionRun

_GAMMA = 0x9E3779B97F4A7C15  # odd, so no two turns of a seed meet (SplitMix64, as in engines.randomness)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a sample says of its turns; see `schemas.records.Sample`."""

    loss_mask: bytes
    turns: bytes
    step_rewards: bytes
    environment: str
    facts: dict[str, str]
    turn_ms: bytes

    def on(self, sample: Sample) -> Sample:
        """The sample with it."""
        return replace(
            sample,
            loss_mask=self.loss_mask,
            turns=self.turns,
            step_rewards=self.step_rewards,
            environment=self.environment,
            environment_facts=self.facts,
            turn_ms=self.turn_ms,
        )


@dataclass(kw_only=True)
class Trajectory:
    """See the module."""

    request: GenerationRequest  # of the first turn: the prompt
    max_turns: int
    max_tokens: int  # after the prompt, the environment's included
    context_tokens: int
    tokens: TokenArray = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: LogprobArray = field(default_factory=lambda: np.empty(0, np.float32))
    mask: bytes = b""
    text: str = ""
    runs: tuple[VersionRun, ...] = ()
    ends: list[int] = field(default_factory=list)  # of turns, in tokens
    rewards: list[float] = field(default_factory=list)  # one per turn
    facts: dict[str, str] = field(default_factory=dict)
    heard: TokenArray = field(default_factory=lambda: np.empty(0, np.int32))  # to be read before the next turn
    heard_text: str = ""
    last: Generation | None = None
    spent_s: list[float] = field(default_factory=list)  # the environment's and the model's by turns, in their order

    @property
    def num_turns(self) -> int:
        """Turns that the model has taken."""
        return len(self.ends)

    @property
    def is_last_turn(self) -> bool:
        """Whether the turn just taken was the last that is allowed."""
        return self.num_turns >= self.max_turns or self.room < 1

    @property
    def room(self) -> int:
        """Tokens that may still be added, of the model or of the environment."""
        num = len(self.tokens) + len(self.heard)
        return min(self.max_tokens, self.context_tokens - len(self.request.prompt_tokens)) - num

    def hear(self, tokens: TokenArray, *, text: str) -> bool:
        """Read this before the next turn; False: there would be no room for an answer, and it was not read."""
        if len(tokens) >= self.room:
            return False
        self.heard, self.heard_text = tokens, text
        return True

    def next_request(self) -> GenerationRequest:
        """The request of the next turn."""
        first = self.request
        tokens = np.concatenate([np.asarray(first.prompt_tokens, dtype=np.int32), self.tokens, self.heard])
        sampling = replace(first.sampling, max_tokens=min(first.sampling.max_tokens, self.room))
        return replace(
            first, prompt_tokens=tokens, sampling=sampling, seed=(first.seed + self.num_turns * _GAMMA) % 2**64
        )

    def num_prefilled_again(self, generation: Generation) -> int:
        """Tokens that the engine had computed in an earlier turn and computed again for this one; call before `say`."""
        if not self.num_turns:
            return 0
        return max(0, len(self.request.prompt_tokens) + len(self.tokens) - generation.num_cached)

    def say(self, generation: Generation) -> None:
        """A turn of the model."""
        heard, made = len(self.heard), len(generation.tokens)
        first = generation.version_runs[0]
        runs = (replace(first, num_tokens=first.num_tokens + heard), *generation.version_runs[1:])
        self.tokens = np.concatenate([self.tokens, self.heard, generation.tokens]).astype(np.int32)
        self.logprobs = np.concatenate([self.logprobs, np.zeros(heard, np.float32), generation.logprobs])
        self.mask += b"\x00" * heard + b"\x01" * made
        self.text += self.heard_text + generation.text
        self.runs = join_runs(self.runs, runs)
        self.ends.append(len(self.tokens))
        self.heard, self.heard_text = np.empty(0, np.int32), ""
        self.last = generation

    def reward(self, observation: Observation) -> None:
        """What the turn just taken was worth, and what is added to earlier ones.

        Raises:
            ValueError: a delayed reward of a turn that was not taken.
        """
        self.facts.update(observation.facts)
        wrong = [turn for turn in observation.earlier if not 0 <= turn < self.num_turns]
        if wrong:
            raise ValueError(f"a delayed reward of turn {wrong[0]}, {self.num_turns} were taken")
        if self.num_turns:
            self.rewards.append(observation.reward)
        for turn, value in observation.earlier.items():
            self.rewards[turn] += value

    def whole(self) -> Generation:
        """The completion; at least one turn was taken."""
        if self.last is None:
            raise RuntimeError("a trajectory ends after its first turn")
        return replace(
            self.last,
            request_id=self.request.request_id,
            tokens=self.tokens,
            text=self.text,
            logprobs=self.logprobs,
            version_runs=self.runs,
        )

    def told(self, environment: str) -> Told:
        """What the sample says of its turns."""
        return Told(
            loss_mask=pack_u8(np.frombuffer(self.mask, np.uint8)),
            turns=pack_i32(self.ends),
            step_rewards=pack_f32(self.rewards),
            environment=environment,
            facts=dict(self.facts),
            turn_ms=pack_i32([round(1000 * each) for each in self.spent_s]),
        )
