"""What a run's topics are like, and where that differs from the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ops.replay.sources import RunNotFound
from topics.catalog import CATALOG, Topic, full_name, num_partitions
from topics.kafka.raw import RawLog


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """One topic."""

    name: str  # short
    offsets: Mapping[int, tuple[int, int]]  # (earliest, end) per partition; empty: the topic does not exist
    cleanup: str
    retention_ms: int  # -1: for ever
    max_bytes: int  # largest message
    problems: tuple[str, ...]

    @property
    def num_offsets(self) -> int:
        """Offsets between earliest and end: records, transaction markers, and gaps that compaction left."""
        return sum(end - low for low, end in self.offsets.values())

    def values(self) -> dict[str, object]:
        """For JSON."""
        return {
            "topic": self.name,
            "partitions": len(self.offsets),
            "offsets": {str(part): list(bounds) for part, bounds in self.offsets.items()},
            "num_offsets": self.num_offsets,
            "cleanup": self.cleanup,
            "retention_ms": self.retention_ms,
            "max_bytes": self.max_bytes,
            "problems": list(self.problems),
        }


def topic_facts(log: RawLog, run: str, *, data_partitions: int | None) -> list[TopicFacts]:
    """All topics of the catalog; `data_partitions` is P as the run's settings have it, None: unknown.

    Raises:
        RunNotFound: the run has no topics.
    """
    counts = log.partition_counts()
    present = [topic for topic in CATALOG if full_name(run, topic) in counts]
    if not present:
        raise RunNotFound(
            f"run {run!r} has no topics on this broker", hint="`rlweave runs list` shows the runs there are"
        )
    if data_partitions is None:
        data_partitions = max(
            (counts[full_name(run, topic)] for topic in present if topic.partitions == "data"), default=1
        )
    configs = log.configs([full_name(run, topic) for topic in present])
    return [
        _facts(log, run, topic=topic, counts=counts, configs=configs, data_partitions=data_partitions)
        for topic in CATALOG
    ]


def _facts(
    log: RawLog,
    run: str,
    *,
    topic: Topic,
    counts: Mapping[str, int],
    configs: Mapping[str, Mapping[str, str]],
    data_partitions: int,
) -> TopicFacts:
    name = full_name(run, topic)
    if name not in counts:
        return TopicFacts(
            name=topic.name, offsets={}, cleanup="", retention_ms=0, max_bytes=0, problems=("the topic does not exist",)
        )
    config = configs[name]
    places = [(name, partition) for partition in range(counts[name])]
    return TopicFacts(
        name=topic.name,
        offsets={partition: bounds for (_, partition), bounds in log.ranges(places).items()},
        cleanup=config["cleanup.policy"],
        retention_ms=int(config["retention.ms"]),
        max_bytes=int(config["max.message.bytes"]),
        problems=tuple(_problems(topic, config, seen=counts[name], wanted=num_partitions(topic, data_partitions))),
    )


def _problems(topic: Topic, config: Mapping[str, str], *, seen: int, wanted: int) -> Iterator[str]:
    if seen != wanted:
        yield f"{seen} partitions, wanted are {wanted}"
    if config["cleanup.policy"] != topic.cleanup:
        yield f"cleanup.policy {config['cleanup.policy']}, wanted is {topic.cleanup}"
    kept = int(config["retention.ms"])
    if kept != -1 and not -1 < topic.retention_ms <= kept:
        yield f"retention.ms {kept}, wanted is {topic.retention_ms} or longer"
    if int(config["max.message.bytes"]) < topic.max_record_bytes:
        yield f"max.message.bytes {config['max.message.bytes']}, wanted is {topic.max_record_bytes} or more"
