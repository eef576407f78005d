"""Access rules on a Kafka cluster: from the grants of `topics.access` to the broker's own, and back.

Role: sets the rules of a run, prints them as commands for those who set them by hand, and checks at the start of a
process that its user may do all that its role needs.
Data in: grants per principal (`User:name`). Data out: rules of type "allow", from any host.
Invariants: rules are added, never removed or widened; adding what is there changes nothing.
Failure: `AccessDenied` naming everything that is missing at once; `LogError` when the broker keeps no rules.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported implicitly
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from schemas.errors import AccessDenied
from topics.access import Grant, Operation, Resource
from topics.clock import Deadline
from topics.kafka.client import Connection
from topics.kafka.errors import DENIED_HINT, cause_of, is_unknown_topic, translated, translating
from topics.kafka.offsets import REQUEST_TIMEOUT_S, AdminHandle

Rule = tuple[str, Grant]  # principal, what it may do

_APPLY_LIMIT_S = 10.0
_POLL_S = 0.05
_RESOURCES: Mapping[Resource, ResourceType] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS: Mapping[Operation, AclOperation] = {
    "read": AclOperation.READ,
    "write": AclOperation.WRITE,
    "create": AclOperation.CREATE,
    "delete": AclOperation.DELETE,
    "describe": AclOperation.DESCRIBE,
    "describe_configs": AclOperation.DESCRIBE_CONFIGS,
    "alter_configs": AclOperation.ALTER_CONFIGS,
}
_OPTIONS: Mapping[Resource, str] = {"topic": "--topic", "group": "--group", "transactional_id": "--transactional-id"}


class AccessRules:
    """The rules of one cluster.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: client library settings that win over ours, of a user who may set rules.
    """

    def __init__(self, bootstrap: str, *, config: Mapping[str, str]) -> None:
        connection = Connection(bootstrap=bootstrap, run="", data_partitions=1, overrides=dict(config))
        self._handle = AdminHandle(connection)

    def apply(self, rules: Iterable[Rule]) -> int:
        """Add what is not there; returns how many rules were added, once the broker shows them all.

        Raises:
            AccessDenied: this user may not.
            LogError: the cluster keeps no rules, or did not answer.
        """
        self._handle.connect(limit_s=_APPLY_LIMIT_S)
        wanted = set(rules)
        missing = wanted - self.present()
        if not missing:
            return 0
        futures = self._handle.client().create_acls(
            [_binding(principal, grant) for principal, grant in sorted(missing)], request_timeout=REQUEST_TIMEOUT_S
        )
        with translating("setting access rules"):
            for future in futures.values():
                future.result()
        deadline = Deadline.after(_APPLY_LIMIT_S)
        while wanted - self.present():
            deadline.check("the broker to show the new access rules")
            deadline.clock.wait(_POLL_S)
        return len(missing)

    def present(self) -> set[Rule]:
        """Every rule that one of our grants could have made."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # any; what the library takes is wider than what it declares
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ALLOW,
        )
        with translating("asking for the access rules"):
            found = self._handle.client().describe_acls(everything, request_timeout=REQUEST_TIMEOUT_S).result()
        return {rule for binding in found if (rule := _rule(binding)) is not None}


def check_access(handle: AdminHandle, grants: Sequence[Grant]) -> None:
    """See that the broker allows everything of `grants` on single topics, of those that exist.

    Raises:
        AccessDenied: naming all that is missing.
    """
    wanted: dict[str, set[Operation]] = {}
    for grant in grants:
        if grant.resource == "topic" and not grant.prefixed:
            wanted.setdefault(grant.name, set()).add(grant.operation)
    missing = [
        f"{operation} {name}"
        for name, allowed in sorted(_allowed(handle, sorted(wanted)).items())
        for operation in sorted(wanted[name] - allowed)
    ]
    if missing:
        raise AccessDenied(f"the broker's access rules do not allow: {', '.join(missing)}", hint=DENIED_HINT)


def command_lines(rules: Iterable[Rule], *, bootstrap: str) -> list[str]:
    """The rules as calls of Kafka's own tool."""
    return [
        shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", bootstrap, "--command-config", "admin.properties", "--add"),
                *("--allow-principal", principal, "--operation", _OPERATIONS[grant.operation].name),
                *(_OPTIONS[grant.resource], grant.name),
                *("--resource-pattern-type", "prefixed" if grant.prefixed else "literal"),
            ]
        )
        for principal, grant in rules
    ]


def _allowed(handle: AdminHandle, names: Sequence[str]) -> dict[str, set[Operation]]:
    """What the broker allows us on each topic that exists; nothing on one that it hides from us."""
    if not names:
        return {}
    futures = handle.client().describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S
    )
    allowed: dict[str, set[Operation]] = {}
    for name, future in futures.items():
        try:
            operations = future.result().authorized_operations or []
        except KafkaException as exception:
            error = cause_of(exception)
            if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                if is_unknown_topic(error):
                    continue
                raise translated(error, doing=f"asking what is allowed on {name}") from exception
            operations = []
        allowed[name] = {ours for ours, theirs in _OPERATIONS.items() if theirs in operations}
    return allowed


def _binding(principal: str, grant: Grant) -> AclBinding:
    return AclBinding(
        _RESOURCES[grant.resource],
        grant.name,
        ResourcePatternType.PREFIXED if grant.prefixed else ResourcePatternType.LITERAL,
        principal,
        "*",
        _OPERATIONS[grant.operation],
        AclPermissionType.ALLOW,
    )


def _rule(binding: AclBinding) -> Rule | None:
    resources = {theirs: ours for ours, theirs in _RESOURCES.items()}
    operations = {theirs: ours for ours, theirs in _OPERATIONS.items()}
    if binding.restype not in resources or binding.operation not in operations or binding.host != "*":
        return None
    prefixed = binding.resource_pattern_type == ResourcePatternType.PREFIXED
    grant = Grant(
        resource=resources[binding.restype],
        name=binding.name,
        prefixed=prefixed,
        operation=operations[binding.operation],
    )
    return binding.principal, grant
