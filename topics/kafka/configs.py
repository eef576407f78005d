"""Configuration of topics as a broker knows it: read, and brought to what this release wants.

Invariants: a topic that was just created is not known to every broker of a cluster at once, so "unknown" is asked
again for a while.
Failure: `LogError` when a broker does not say, or still does not know the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported implicitly
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from topics.clock import Deadline
from topics.kafka.errors import cause_of, is_transient, is_unknown_topic, translated, translating
from topics.kafka.offsets import REQUEST_TIMEOUT_S, AdminHandle

_KNOWN_LIMIT_S = 10.0
_RETRY_S = 0.1


def topic_configs(handle: AdminHandle, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Every setting, by full topic name.

    Raises:
        LogError: the broker does not say, or does not know a topic.
    """
    deadline = Deadline.after(_KNOWN_LIMIT_S)
    while names:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = handle.client().describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        try:
            return {
                resource.name: {key: str(entry.value) for key, entry in future.result().items()}
                for resource, future in futures.items()
            }
        except KafkaException as exception:
            error = cause_of(exception)
            if deadline.expired or not (is_unknown_topic(error) or is_transient(error)):
                raise translated(error, doing="reading the configurations of topics") from exception
            deadline.clock.wait(_RETRY_S)
    return {}


def alter_configs(handle: AdminHandle, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Set some settings of topics, by full topic name; all others stay.

    Raises:
        AccessDenied: we may not.
        LogError: the broker refused, or did not answer.
    """
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
            ],
        )
        for name, config in wanted.items()
    ]
    with translating("changing the settings of topics"):
        futures = handle.client().incremental_alter_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        for future in futures.values():
            future.result()
