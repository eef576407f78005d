"""Where processes are, and where further ones should be, so that heavy flows stay inside a domain.

Role: `[topology]` of the run file, and the pure function that picks a domain for a process.
Data in: domains with their room and links, and who was heard in which. Data out: the name of a domain.
Invariants: a domain without room is not picked; without a topology, or with no room anywhere, nothing is said. Flows by
weight: gradients between learner ranks, at every step; a version per step into each domain that has engines, of which
one copy crosses; samples, which are small. So learner ranks stay together; engines go to the domain of the seed, then
to one that has engines already, then to the one with the fastest link; rewards go where there is room.
Failure: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from pydantic import Field, PositiveFloat, model_validator

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.snapshot import Snapshot
from pipeline.settings import PositiveInt, Section

Fleet = Mapping[tuple[str, str], int]  # processes by stage and domain


class DomainSettings(Section):
    """`[topology.domains.NAME]`: hosts with fast links to each other; NAME is their `weights.domain`."""

    hosts: tuple[str, ...] = Field(default=(), description="Names of its hosts, for people and executors.")
    processes: PositiveInt | None = Field(
        default=None, description="Processes of the run that fit in; absent: any number."
    )
    inside_gbit_s: PositiveFloat = Field(default=10.0, description="Link between two of its hosts, in Gbit/s.")
    uplink_gbit_s: PositiveFloat = Field(default=1.0, description="Its link to other domains, in Gbit/s.")


class TopologySettings(Section):
    """`[topology]`: the network of a run of several hosts."""

    domains: dict[str, DomainSettings] = Field(default_factory=dict, description="By name.")
    seed: str = Field(default="", description="Domain of the learner, from which weights come.")

    @model_validator(mode="after")
    def _seed_is_a_domain(self) -> Self:
        if self.seed and self.seed not in self.domains:
            raise ValueError(
                f"seed = {self.seed!r} is none of the domains: {', '.join(self.domains) or 'there are none'}"
            )
        return self


def place(stage: str, *, fleet: Fleet, topology: TopologySettings) -> str | None:
    """The domain for one more process of a stage; None: there is no topology, or no room."""
    num_there = Counter[str]()
    for (_, domain), num in fleet.items():
        num_there[domain] += num

    def worth(name: str) -> tuple[float, ...]:
        domain, room = topology.domains[name], _room(topology.domains[name], num_there[name])
        num_same, is_seed = fleet.get((stage, name), 0), name == topology.seed
        if stage == "learner":
            return (num_same, is_seed, domain.inside_gbit_s, room)
        if stage == "rollout":
            return (is_seed, num_same > 0, domain.uplink_gbit_s, room)
        return (room,)

    open_ones = [name for name, domain in topology.domains.items() if _room(domain, num_there[name]) > 0]
    return max(sorted(open_ones), key=worth, default=None)


def placed(drafts: Sequence[CommandDraft], snapshot: Snapshot, *, topology: TopologySettings) -> list[CommandDraft]:
    """The same drafts; those that ask for more processes say in which domain."""
    return [_placed(draft, snapshot, topology=topology) for draft in drafts]


def fleet_of(snapshot: Snapshot) -> Fleet:
    """Who was heard in which domain."""
    return Counter((one.stage, one.domain) for one in snapshot.instances if one.domain)


def _placed(draft: CommandDraft, snapshot: Snapshot, *, topology: TopologySettings) -> CommandDraft:
    if draft.kind != "scale" or draft.targets or draft.replicas is None:
        return draft
    stage = draft.target.partition(".")[0]
    targets = [target for target in snapshot.fleet if target.target == draft.target]
    if targets and draft.replicas <= snapshot.replicas_wanted(targets[0]):
        return draft
    domain = place(stage, fleet=fleet_of(snapshot), topology=topology)
    return draft if domain is None else replace(draft, targets=(domain,), reason=f"{draft.reason}; in {domain}")


def _room(domain: DomainSettings, num_there: int) -> float:
    return float("inf") if domain.processes is None else domain.processes - num_there
