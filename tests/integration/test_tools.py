"""`audit` and `replay` on a real broker, over a hand-written run: copies, dumps, and what a missing record does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from ops.cli.main import cli
from ops.replay.sources import RunNotFound
from ops.services.model import ServicesInfo
from tests.integration.conftest import Written
from tests.unit.ops.little_run import PARTITIONS, RUN, attempt_of
from tests.unit.schemas.examples import EXAMPLES
from topics.access import TOOLS_RUN
from topics.catalog import (
    CATALOG,
    DEAD_LETTERS,
    LEDGER,
    PROMPTS,
    REWARDS,
    SAMPLES,
    WEIGHTS,
    Topic,
    full_name,
)
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog, RawRecord
from topics.log import ReaderHooks, ReaderSettings, WriterSettings

pytestmark = pytest.mark.integration
UNACCOUNTED = 7


def _records(written: Written, run: str, topic: Topic) -> list[RawRecord]:
    """All records of a topic, by partition and offset."""
    log, name = RawLog(written.bootstrap), full_name(run, topic)
    places = [(name, partition) for partition in range(log.partition_counts().get(name, 0))]
    return sorted(log.read(log.ranges(places)), key=lambda record: (record.partition, record.offset))


def test_audit_balances_from_the_broker_and_from_a_dump(written: Written, tmp_path: Path) -> None:
    report = tmp_path / "audit.json"
    live = written.call("audit", "--run", written.run, "--max-age", "1", "--json", str(report))
    assert live.return_value == 0, live.output
    assert json.loads(report.read_text())["trained"] == 8
    written.call("replay", "--run", written.run, "--to-dump", str(tmp_path / "dump"))
    dumped = CliRunner().invoke(cli, ["audit", "--from", str(tmp_path / "dump")], standalone_mode=False)
    assert dumped.return_value == 0, dumped.output
    assert "balanced" in dumped.output


@pytest.mark.parametrize(
    ("topic", "named"),
    [(PROMPTS, "missing_prompt"), (SAMPLES, "missing_sample"), (REWARDS, "missing_reward"), (LEDGER, "missing_ledger")],
)
def test_a_record_taken_away_from_a_dump_is_named(written: Written, tmp_path: Path, topic: Topic, named: str) -> None:
    written.call("replay", "--run", written.run, "--to-dump", str(tmp_path))
    path = tmp_path / f"{topic.name}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for index in range(len(lines)):
        path.write_bytes(b"".join(lines[:index] + lines[index + 1 :]))
        result = CliRunner().invoke(cli, ["audit", "--from", str(tmp_path)], standalone_mode=False)
        assert result.return_value == UNACCOUNTED, f"without line {index}: {result.output}"
        assert named in result.output, f"without line {index}: {result.output}"


@pytest.mark.parametrize(
    ("topic", "named"),
    [(PROMPTS, "missing_prompt"), (SAMPLES, "missing_sample"), (REWARDS, "missing_reward"), (LEDGER, "missing_ledger")],
)
def test_a_record_taken_away_from_a_copy_on_the_broker_is_named(written: Written, topic: Topic, named: str) -> None:
    copy, gone = f"{written.run}-copy", _records(written, written.run, topic)[1]
    place = f"{topic.name}/{gone.partition}/{gone.offset}"
    try:
        written.call("replay", "--run", written.run, "--to-run", copy, "--leave-out", place)
        result = written.call("audit", "--run", copy)
        assert result.return_value == UNACCOUNTED, result.output
        assert named in result.output
        assert f"{copy} (records of {RUN})" in result.output
    finally:
        KafkaLog(written.bootstrap, run=copy, data_partitions=PARTITIONS).admin().delete_topics()


def test_a_copy_keeps_bytes_headers_times_and_tombstones_and_balances(written: Written) -> None:
    copy = f"{written.run}-copy"
    try:
        written.call("replay", "--run", written.run, "--to-run", copy)
        for topic in CATALOG:
            before, after = _records(written, written.run, topic), _records(written, copy, topic)
            assert [(r.partition, r.key, r.value, r.headers, r.unix_ms) for r in before] == [
                (r.partition, r.key, r.value, r.headers, r.unix_ms) for r in after
            ]
        assert any(record.value is None for record in _records(written, copy, WEIGHTS))
        assert written.call("audit", "--run", copy).return_value == 0
    finally:
        KafkaLog(written.bootstrap, run=copy, data_partitions=PARTITIONS).admin().delete_topics()


def test_replay_by_sample_id_gives_the_sample_its_rewards_and_its_outcome(written: Written, tmp_path: Path) -> None:
    out = tmp_path / "sample.jsonl"
    result = written.call("replay", "--run", written.run, "--sample", "4/1", "--jsonl", str(out))
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["topic"], line["type"]) for line in lines] == [
        ("prompts", "PromptGroup"),
        ("samples", "Sample"),
        ("rewards", "Reward"),
        ("shadow-rewards", "Reward"),
        ("ledger", "Outcome"),
    ]
    by_topic = {line["topic"]: line["record"] for line in lines}
    assert by_topic["samples"]["completion_tokens"] == [3, 4]
    assert by_topic["samples"]["member"] == 1
    assert by_topic["samples"]["logprobs"] == [-0.5, -0.25]
    assert (by_topic["rewards"]["name"], by_topic["shadow-rewards"]["value"]) == ("exact", 0.125)
    assert by_topic["ledger"]["attempt"] == attempt_of(4)
    text = written.call("replay", "--run", written.run, "--sample", f"{RUN}/4/1", "--show", "tokens").output
    assert "completion: 5" in text
    assert "-0.250000" in text
    other = written.call("replay", "--run", written.run, "--sample", "another/4/1", "--topic", "samples").output
    assert "completion" not in other


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (["--topic", "samples"], 10),
        (["--topic", "samples", "--partition", "1"], 4),
        (["--topic", "samples", "--partition", "0", "--offset", "1..2"], 2),
        (["--topic", "samples", "--partition", "0", "--offset", "4.."], 2),
        (["--version", "1.1"], 3),  # two samples and a manifest
        (["--version", "1.0..2.1", "--topic", "weights"], 4),  # with a tombstone, which has no version header
        (["--group", "5"], 2),
        (["--topic", "prompts", "--time", "1970-01-01.."], 6),
        (["--topic", "prompts", "--time", "..1970-01-01"], 0),
        (["--topic", "samples", "--limit", "3"], 3),
    ],
)
def test_selections(written: Written, tmp_path: Path, selection: list[str], count: int) -> None:
    out = tmp_path / "selected.jsonl"
    result = written.call("replay", "--run", written.run, *selection, "--jsonl", str(out))
    assert result.exit_code == 0, result.output
    assert len(out.read_text().splitlines()) == count


def _group_offsets(written: Written, group: str) -> dict[tuple[str, int], int]:
    with_offsets = written.log.admin().lag(group, [SAMPLES])
    return {(each.topic, each.partition): each.committed for each in with_offsets if each.committed is not None}


def _groups(client: AdminClient, *, run: str) -> set[str]:
    """Consumer groups that the tools could have made; those of other tests come and go beside this one."""
    known = {each.group_id for each in client.list_consumer_groups().result().valid}
    return {group for group in known if group.startswith((f"rlweave.{run}.", f"rlweave.{TOOLS_RUN}."))}


def test_reading_back_changes_no_consumer_group(written: Written) -> None:
    group = f"rlweave.{written.run}.reward.exact"
    reader = written.log.reader(
        ReaderSettings(topics=(SAMPLES,), group=group),
        hooks=ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None),
    )
    reader.poll(1, deadline=Deadline.after(60))
    reader.commit({("samples", 0): 2, ("samples", 1): 1})
    reader.close()
    client = AdminClient({"bootstrap.servers": written.bootstrap})
    groups = _groups(client, run=written.run)
    before = _group_offsets(written, group)
    assert before == {("samples", 0): 2, ("samples", 1): 1}

    written.call("replay", "--run", written.run, "--sample", "4/1")
    written.call("replay", "--run", written.run)
    written.call("audit", "--run", written.run)

    assert _group_offsets(written, group) == before
    assert _groups(client, run=written.run) == groups


def test_what_is_no_record_is_shown_with_its_bytes(written: Written) -> None:
    writer = written.log.writer(WriterSettings())
    writer.write_raw(SAMPLES, key=b"4", value=b"\x00\xffno frame", partition=0, headers=[("fp", b"00")])
    writer.flush(deadline=Deadline.after(10))
    writer.close(deadline=Deadline.after(5))
    shown = written.call("replay", "--run", written.run, "--topic", "samples", "--group", "4")
    assert shown.exit_code == 0
    assert "NOT A RECORD" in shown.output
    assert b"\x00\xffno frame".hex() in shown.output
    line = json.loads(
        written.call(
            "replay", "--run", written.run, "--topic", "samples", "--offset", "6", "--jsonl", "-"
        ).stdout.splitlines()[0]
    )
    assert (line["type"], line["value_hex"]) == (None, b"\x00\xffno frame".hex())
    audited = written.call("audit", "--run", written.run)
    assert "1 undecodable records on samples" in audited.output
    assert audited.return_value == 0


def test_dead_letters_are_shown_with_origin_and_bytes(written: Written) -> None:
    writer = written.log.writer(WriterSettings())
    writer.write(DEAD_LETTERS, EXAMPLES[-1])
    writer.flush(deadline=Deadline.after(10))
    writer.close(deadline=Deadline.after(5))
    shown = written.call("replay", "--run", written.run, "--topic", "dead-letters").output
    assert "rlweave.demo.samples[1] 99" in shown
    assert "unknown marker" in shown


def test_an_unknown_run_is_a_named_error(services: ServicesInfo) -> None:
    with pytest.raises(RunNotFound, match="has no topics"):
        CliRunner().invoke(
            cli,
            ["audit", "--run", "nobody", "--kafka", services.kafka_bootstrap],
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_two_rewards_are_compared(written: Written) -> None:
    result = written.call("rewards", "compare", written.run, "exact", "shadow", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["num_both"], found["b"]["num_values"]) == (1, 1)
