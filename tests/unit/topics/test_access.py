"""Each role may do what it needs and nothing else."""

from __future__ import annotations

import ast

import pytest

from schemas.errors import SettingsError
from tests.unit.shape.tree import modules
from topics.access import ROLES, STAGES, Grant, Operation, grants
from topics.catalog import (
    CATALOG,
    COMMANDS,
    DEAD_LETTERS,
    EVALUATIONS,
    EVENTS,
    LEDGER,
    PARTIALS,
    PROMPTS,
    REFERENCE_SCORES,
    REWARDS,
    SAMPLES,
    SHADOW_REWARDS,
    WEIGHTS,
    Topic,
    full_name,
)
from topics.kafka.acls import command_lines

RUN = "some-run"


def who(operation: Operation, topic: Topic) -> set[str]:
    """Stages that may do this on a topic by a rule of its own."""
    grant = Grant(resource="topic", name=full_name(RUN, topic), operation=operation)
    return {stage for stage in STAGES if grant in grants(stage, run=RUN)}


@pytest.mark.parametrize(
    ("topic", "writers", "readers"),
    [
        (PROMPTS, {"prompts"}, {"prompts", "rollout", "learner"}),
        (SAMPLES, {"rollout"}, {"reward", "reference", "learner"}),
        (REFERENCE_SCORES, {"reference"}, {"learner"}),
        (REWARDS, {"reward"}, {"learner"}),
        (SHADOW_REWARDS, {"reward"}, set()),
        (LEDGER, {"learner"}, {"prompts", "rollout", "learner", "scheduler", "evaluator"}),
        (PARTIALS, {"rollout"}, {"rollout"}),
        (EVENTS, set(STAGES), {"scheduler", "learner"}),
        (COMMANDS, {"scheduler"}, {"scheduler", "prompts", "rollout", "peer"}),
        (WEIGHTS, {"learner"}, {"prompts", "rollout", "learner", "scheduler", "evaluator"}),
        (EVALUATIONS, {"evaluator"}, {"evaluator"}),
        (DEAD_LETTERS, set(STAGES), set()),
    ],
)
def test_the_table_is_that_of_the_design(topic: Topic, writers: set[str], readers: set[str]) -> None:
    assert who("write", topic) == writers
    assert who("read", topic) == readers


@pytest.mark.parametrize(
    ("stage", "places"),
    [
        ("prompts", ("producers/prompts/", "producers/control.py")),
        ("rollout", ("producers/rollout/", "producers/control.py")),
        ("reward", ("consumers/rewards/",)),
        ("reference", ("consumers/reference/",)),
        ("learner", ("consumers/learner/",)),
        ("scheduler", ("consumers/scheduler/",)),
        ("evaluator", ("consumers/evaluator/",)),
    ],
)
def test_a_stage_names_only_topics_that_it_may_use(stage: str, places: tuple[str, ...]) -> None:
    constants = {topic.name.replace("-", "_").upper(): topic for topic in CATALOG}
    named = {
        node.id
        for module in modules()
        if module.path.startswith(places)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and node.id in constants
    }
    assert named
    watched = {"PROMPTS", "SAMPLES"} if stage == "scheduler" else set()  # it asks how far the groups on it are behind
    assert {name for name in named if stage not in who("read", constants[name]) | who("write", constants[name])} == (
        watched & named
    )


def test_the_table_names_every_topic_and_every_role_has_rules() -> None:
    assert {name for topic in CATALOG for name in who("write", topic)} == set(STAGES)
    assert all(who("write", topic) for topic in CATALOG)
    assert all(grants(role, run=RUN) for role in ROLES)


def test_stages_may_not_create_delete_or_read_by_prefix() -> None:
    for stage in STAGES:
        mine = grants(stage, run=RUN)
        assert not [grant for grant in mine if grant.operation in ("create", "delete")]
        assert {grant.operation for grant in mine if grant.resource == "topic" and grant.prefixed} == {
            "describe",
            "describe_configs",
        }


def test_a_transactional_id_belongs_to_one_role() -> None:
    ids = {
        stage: {grant.name for grant in grants(stage, run=RUN) if grant.resource == "transactional_id"}
        for stage in ROLES
    }
    assert {stage: names for stage, names in ids.items() if names} == {
        stage: {f"rlweave.{RUN}.{stage}"} for stage in ("prompts", "learner", "scheduler")
    }


def test_nothing_reaches_beyond_the_run() -> None:
    allowed = (f"rlweave.{RUN}.", "rlweave.tools.no-commits", "group-of-a-reward")
    for role in ROLES:
        for grant in grants(role, run=RUN, reward_groups=["group-of-a-reward"]):
            assert grant.name.startswith(allowed), grant


def test_a_rewards_own_group_is_for_rewards_to_join_and_the_scheduler_to_see() -> None:
    joins = Grant(resource="group", name="mine", operation="read")
    sees = Grant(resource="group", name="mine", operation="describe")
    of = {role: grants(role, run=RUN, reward_groups=["mine"]) for role in STAGES}
    assert {role for role, each in of.items() if joins in each} == {"reward"}
    assert {role for role, each in of.items() if sees in each} == {"scheduler"}


def test_a_run_name_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError):
        grants("learner", run="*")


def test_rules_print_as_calls_of_kafkas_tool() -> None:
    rule = ("User:CN=a b", Grant(resource="group", name="rlweave.x.", prefixed=True, operation="describe_configs"))
    (line,) = command_lines([rule], bootstrap="host:9092")
    assert line == (
        "kafka-acls.sh --bootstrap-server host:9092 --command-config admin.properties --add "
        "--allow-principal 'User:CN=a b' --operation DESCRIBE_CONFIGS --group rlweave.x. "
        "--resource-pattern-type prefixed"
    )
