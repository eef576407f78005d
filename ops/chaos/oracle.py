"""A check that shares no code with the product: the learner's own notes against the ledger, read as raw Kafka.

    python ops/chaos/oracle.py --bootstrap HOST:PORT --run NAME --oracle-file FILE [--avro-dir schemas/avro]

The learner's notes are lines {lineage, step, sample_ids}, synced before the step they speak of. Prints JSON:

    trained_ids     number of ids trained in the surviving history
    twice           ids that the surviving history, or the lines that count, hold more than once
    lost            ids with a prompt and neither a surviving outcome nor a right to be open; numbers left out (`run/n`)
    only_in_oracle  ids in a line that counts, not trained by the ledger
    only_in_ledger  ids trained by the ledger, in no line that counts
    undecodable     number of records passed over, as they are none of the topic's

and exits with 0 if the lists are empty, with 1 if not, with 2 if it could not check.

Decisions. The surviving history is the path from the highest lineage to its ancestors, each up to the lowest branch
step on the way. A line (lineage, step) counts if an outcome of that very (lineage, step) that survives has result
"trained": the line is written before the transaction, so one whose transaction never committed is void, and so is one
on an abandoned branch. Of several lines of one (lineage, step) the last counts: a process that tried a step again
used the batch it wrote last. Groups may be open, unless the highest lineage is sealed. Bytes that are no record of the
topic, which anybody may write, are counted: what they displace shows as lost.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, cast

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

Body: TypeAlias = "dict[str, object]"
Step: TypeAlias = "tuple[int, int]"  # (lineage, step)
MARKER = b"\xc3\x01"
SILENT_S = 30.0  # longest wait for the broker without an answer
TOPICS = {"ledger": {"Outcome", "LineageStarted", "LedgerSealed"}, "prompts": {"PromptGroup"}}
NOT_UNPACKED = (KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG)
NOT_AVRO = (EOFError, IndexError, OverflowError, MemoryError, TypeError, ValueError)  # as fastavro says it


class CannotCheck(Exception):
    """The check itself is impossible."""


class Decoder:
    """Avro single-object encoding over the schema files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._schemas = {}
        for path in sorted(folder.glob("*/v*.avsc")):
            schema = parse_schema(json.loads(path.read_text(encoding="utf-8")))
            digest = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
            self._schemas[digest] = schema
        if not self._schemas:
            raise CannotCheck(f"no schema files in {folder}")

    def decode(self, value: bytes) -> tuple[str, Body] | None:
        """Name of the record type, and its fields as written; None when it is no record."""
        schema = self._schemas.get(value[2:10])
        if value[:2] != MARKER or schema is None:
            return None
        rest = io.BytesIO(value[10:])
        try:
            body = fastavro.schemaless_reader(rest, schema, None)
        except NOT_AVRO:
            return None
        name = str(cast("Body", schema)["name"]).rpartition(".")[2]
        return None if rest.read(1) else (name, cast("Body", body))


class Topic:
    """One topic of a run.

    Args:
        name: short name.
    """

    def __init__(self, bootstrap: str, run: str, *, name: str) -> None:
        self._bootstrap = bootstrap
        self._full_name = f"rlweave.{run}.{name}"
        self._kinds = TOPICS[name]
        self.num_undecodable = 0

    def records(self, decoder: Decoder) -> Iterator[tuple[str, Body]]:
        """Its records up to the present end, in order within a partition."""
        for value in values(self._bootstrap, self._full_name):
            decoded = decoder.decode(value)
            if decoded is None or decoded[0] not in self._kinds:
                self.num_undecodable += 1
            else:
                yield decoded


def values(bootstrap: str, topic: str) -> Iterator[bytes]:
    """All committed records of a topic up to its present end, as bytes; nothing for a batch that cannot be unpacked."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle-no-commits",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=SILENT_S).topics[topic]
        if found.error is not None:
            raise CannotCheck(f"topic {topic}: {found.error}")
        low = {part: consumer.get_watermark_offsets(TopicPartition(topic, part))[0] for part in found.partitions}
        consumer.assign([TopicPartition(topic, part, start) for part, start in low.items()])
        left, tried = set(low), dict(low)
        while left:
            message = consumer.poll(SILENT_S)
            if message is None:
                raise CannotCheck(f"{topic} was silent for {SILENT_S:g} s")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                left.discard(int(message.partition() or 0))
            elif error is not None and error.code() in NOT_UNPACKED:
                # The client names the batch's first offset wherever in it one begins, so its end is found step by step.
                partition, first = int(message.partition() or 0), int(message.offset() or 0)
                if first >= tried[partition]:
                    yield b""
                tried[partition] = max(tried[partition], first) + 1
                consumer.seek(TopicPartition(topic, partition, tried[partition]))
            elif error is not None:
                raise CannotCheck(f"{topic}: {error}")
            elif message.partition() in left:
                yield bytes(message.value() or b"")
    finally:
        consumer.close()


class Ledger:
    """Outcomes, lineages and seals."""

    def __init__(self) -> None:
        self.origins: dict[int, Step] = {}  # lineage -> (parent, branch step)
        self.sealed: set[int] = set()
        self.outcomes: list[tuple[Step, Body]] = []

    def add(self, kind: str, body: Body) -> None:
        """Take one record."""
        lineage = number(body, "lineage")
        if kind == "LineageStarted":
            self.origins[lineage] = (number(body, "parent"), number(body, "branch_step"))
        elif kind == "LedgerSealed":
            self.sealed.add(lineage)
        elif kind == "Outcome":
            self.outcomes.append(((lineage, number(body, "step")), body))

    @property
    def is_sealed(self) -> bool:
        """Whether the present history has ended."""
        return max(self.origins, default=0) in self.sealed

    def surviving(self) -> list[tuple[Step, Body]]:
        """Outcomes on the path from the highest lineage to its ancestors."""
        limits: dict[int, float] = {}
        lineage, limit = max(self.origins, default=0), float("inf")
        while lineage > 0 and lineage not in limits:
            limits[lineage] = limit
            lineage, branch_step = self.origins.get(lineage, (0, 0))
            limit = min(limit, branch_step)
        return [(at, body) for at, body in self.outcomes if at[1] <= limits.get(at[0], -1)]


def members(outcome: Body) -> list[Body]:
    """The member entries of an outcome."""
    return cast("list[Body]", outcome["members"])


def id_of(outcome: Body, member: Body) -> str:
    """`run/group/member`."""
    return f"{outcome['run']}/{outcome['group']}/{member['member']}"


def number(body: Body, name: str) -> int:
    """A whole number of a record."""
    value = body[name]
    if not isinstance(value, int):
        raise CannotCheck(f"{name} is {value!r}, not a whole number")
    return value


def oracle_lines(path: Path) -> dict[Step, list[str]]:
    """Ids per (lineage, step), of the last line of each. A line cut short by a kill is passed over."""
    lines: dict[Step, list[str]] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CannotCheck(f"{path} cannot be read: {error}") from error
    for line in text.splitlines():
        try:
            noted = json.loads(line)
            lines[int(noted["lineage"]), int(noted["step"])] = [str(each) for each in noted["sample_ids"]]
        except (ValueError, KeyError, TypeError):
            print(f"not a whole line, passed over: {line[:80]!r}", file=sys.stderr)
    return lines


def lost_ids(prompts: list[Body], ledger: Ledger, *, surviving: list[tuple[Step, Body]]) -> list[str]:
    """Ids that nobody accounts for."""
    spoken = {id_of(outcome, member) for _, outcome in surviving for member in members(outcome)}
    closed = {number(outcome, "group") for _, outcome in surviving}
    lost = []
    seen = {number(prompt, "group") for prompt in prompts}
    for prompt in prompts:
        group = number(prompt, "group")
        if group in closed or ledger.is_sealed:
            ids = [f"{prompt['run']}/{group}/{member}" for member in range(number(prompt, "group_size"))]
            lost += [each for each in ids if each not in spoken]
    run = str(prompts[0]["run"]) if prompts else ""
    lost += [f"{run}/{group}" for group in range(max(seen | closed, default=-1) + 1) if group not in seen]
    return lost


def compare(prompts: list[Body], ledger: Ledger, *, lines: dict[Step, list[str]]) -> dict[str, object]:
    """The verdict."""
    surviving = ledger.surviving()
    committed: set[Step] = set()
    trained: Counter[str] = Counter()
    for at, outcome in surviving:
        if outcome["result"] == "trained":
            committed.add(at)
        trained.update(id_of(outcome, each) for each in members(outcome) if each["result"] == "trained")
    noted = Counter(each for at, ids in lines.items() if at in committed for each in ids)
    twice = {each for counts in (trained, noted) for each, count in counts.items() if count > 1}
    return {
        "trained_ids": len(trained),
        "twice": sorted(twice),
        "lost": sorted(lost_ids(prompts, ledger, surviving=surviving)),
        "only_in_oracle": sorted(noted.keys() - trained.keys()),
        "only_in_ledger": sorted(trained.keys() - noted.keys()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Check one run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare the learner's notes with the ledger, read as raw Kafka.")
    parser.add_argument("--bootstrap", required=True, help="host:port of the broker")
    parser.add_argument("--run", required=True)
    parser.add_argument("--oracle-file", required=True, type=Path)
    default = Path(__file__).resolve().parents[2] / "schemas" / "avro"
    parser.add_argument("--avro-dir", type=Path, default=default)
    given = parser.parse_args(arguments)
    try:
        decoder, ledger = Decoder(given.avro_dir), Ledger()
        topics = {name: Topic(given.bootstrap, given.run, name=name) for name in TOPICS}
        for kind, body in topics["ledger"].records(decoder):  # before what it speaks of
            ledger.add(kind, body)
        prompts = [body for _, body in topics["prompts"].records(decoder)]
        verdict = compare(prompts, ledger, lines=oracle_lines(given.oracle_file))
        verdict["undecodable"] = sum(topic.num_undecodable for topic in topics.values())
    except (CannotCheck, KafkaException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(verdict, indent=2))
    return 1 if any(verdict[name] for name in ("twice", "lost", "only_in_oracle", "only_in_ledger")) else 0


if __name__ == "__main__":
    sys.exit(main())
