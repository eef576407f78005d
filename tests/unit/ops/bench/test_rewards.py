"""What is judged of rewards under faults, and what the table says of it."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace

import orjson
import pytest

from ops.bench.result import Noise
from ops.bench.rewards.bench import Compared, RewardsSize, rewards_result
from ops.bench.rewards.faults import NAMES, Account, FaultSize, account_of, num_loops_of
from ops.bench.rewards.loops import Loops
from ops.bench.rewards.past import PastFound
from ops.bench.rewards.scorers import GROUP_SIZE, nan, spoils, value_of
from ops.bench.rewards.service import Service
from pipeline.priority import LOWEST, session_nice
from schemas.records import Reward, Sample
from tests.unit.consumers.rewards.helpers import sample
from topics.clock import Deadline

SAMPLES = [
    sample(group, member, finished_unix_ms=1000 + 100 * group) for group in range(20) for member in range(GROUP_SIZE)
]


def scored(one: Sample, *, value: float | None, failure: str | None = None, late_ms: int = 50) -> Reward:
    return Reward(
        run="r",
        group=one.group,
        member=one.member,
        attempt="a",
        name="nan",
        plugin_version="1",
        weight=1.0,
        value=value,
        failure=failure,
        sample_offset=0,
        scored_unix_ms=one.finished_unix_ms + late_ms,
        duration_ms=1.0,
        producer="p",
    )


def broken_nan() -> list[Reward]:
    return [
        scored(one, value=None, failure="non_finite: nan")
        if spoils("nan", group=one.group, member=one.member)
        else scored(one, value=value_of(one))
        for one in SAMPLES
    ]


def test_an_account_that_is_whole() -> None:
    found = account_of("nan", SAMPLES, rewards=broken_nan(), broken=True)
    assert found.is_whole
    assert (found.num_samples, found.num_values, found.failures) == (200, 190, Counter({"non_finite": 10}))
    assert found.per_s == pytest.approx(190 / 1.95), "spoiled ones do not count"
    assert found.delay_p95_s == pytest.approx(0.05)


def test_the_clean_run_is_counted_over_the_same_samples() -> None:
    clean = account_of("nan", SAMPLES, rewards=[scored(one, value=value_of(one)) for one in SAMPLES], broken=False)
    assert clean.is_whole
    assert clean.per_s == account_of("nan", SAMPLES, rewards=broken_nan(), broken=True).per_s


def test_a_0_a_loss_and_a_second_copy_are_seen() -> None:
    rewards = broken_nan()
    rewards[0] = replace(rewards[0], value=0.0)
    rewards.append(rewards.pop(1))
    rewards.append(rewards[5])
    del rewards[10]
    found = account_of("nan", SAMPLES, rewards=rewards, broken=True)
    assert (found.num_zero, found.num_wrong, found.num_missing, found.num_twice) == (1, 1, 1, 1)
    assert not found.is_whole


def test_a_value_in_spite_of_a_fault_is_wrong() -> None:
    found = account_of("nan", SAMPLES, rewards=[scored(one, value=value_of(one)) for one in SAMPLES], broken=True)
    assert found.num_wrong == 10


def test_a_broken_scorer_spoils_what_it_says_it_does() -> None:
    spoiled = [one for one in SAMPLES if nan(one, broken=True) != value_of(one)]
    assert [(one.group, one.member) for one in spoiled] == [(group, 7) for group in range(0, 20, 2)]


def test_the_service_is_away_when_told_and_counts_what_it_answered() -> None:
    service = Service()
    service.start()
    body = orjson.dumps({"samples": [{"group": 3, "member": 1}]})
    try:
        service.be_away(True)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(service.url, data=body)
        caught.value.close()
        assert caught.value.code == 503
        service.be_away(False)
        with urllib.request.urlopen(service.url, data=body) as answer:
            assert orjson.loads(answer.read()) == {"rewards": [1.0 + 3 / 97]}
    finally:
        service.close()
    assert (service.num_refused, service.answered) == (1, Counter({(3, 1): 1}))


def test_the_loops_are_as_many_as_calls_hang_at_a_time() -> None:
    found = account_of("nan", SAMPLES, rewards=broken_nan(), broken=True)
    slow = replace(found, num_samples=4000, failures=Counter({"timeout": 40}), per_s=198.0)  # 3960 in 20 s
    assert num_loops_of(FaultSize(peak_timeout_s=2.0), slow) == 4
    assert num_loops_of(FaultSize(), replace(slow, failures=Counter(), per_s=0.0)) == 1


@pytest.mark.skipif(session_nice() is None, reason="this kernel has no scheduling group per session")
def test_a_loop_stands_back_and_ends_when_told() -> None:
    loops = Loops(1)
    loops.start()
    (process,) = loops.processes
    try:
        deadline = Deadline.after(20)
        while session_nice(process.pid) != LOWEST:
            deadline.check("a loop to stand back")
            time.sleep(0.01)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    finally:
        loops.close()
    assert process.poll() is not None


def test_the_result_says_the_lowest_share_and_whether_all_is_accounted() -> None:
    clean = dict.fromkeys(NAMES, account_of("nan", SAMPLES, rewards=broken_nan(), broken=True))
    broken: dict[str, Account] = {**clean, "hangs": replace(clean["hangs"], per_s=clean["hangs"].per_s * 0.95)}
    away = {**clean, "remote": replace(clean["remote"], per_s=clean["remote"].per_s * 0.5)}
    paced, peak = Compared(clean=clean, broken=broken), Compared(clean=clean, broken=away)
    past = PastFound(
        num_samples=100,
        rescored=100,
        rescore_per_s=50.0,
        rescore_alone_per_s=100.0,
        trained_before_per_s=11.0,
        trained_beside_per_s=9.5,
        trained_after_per_s=9.0,
    )
    size = RewardsSize(faults=FaultSize.quick())
    result = rewards_result(size, paced=paced, peak=peak, past=past, noise=Noise())
    assert result.values["hangs_peak_limit_share"] is None, "nothing was measured beside loops"
    assert result.values["rewards_lowest_share_of_clean"] == 0.95
    assert result.values["rewards_lowest_peak_share_of_clean"] == 1.0, "the service that is away is told apart"
    assert result.values["remote_peak_share_of_clean"] == 0.5
    assert result.values["rewards_all_accounted"] == 1
    assert result.values["trained_share"] == 0.95
    beside = {**clean, "hangs": replace(clean["hangs"], per_s=clean["hangs"].per_s * 0.97)}
    loaded = replace(peak, beside=beside, num_loops=4)
    result = rewards_result(size, paced=paced, peak=loaded, past=past, noise=Noise())
    assert (result.values["hangs_peak_limit_share"], result.values["hangs_peak_num_loops"]) == (0.97, 4)
    assert "4 processes loop beside it" in result.text()
    broken["raises"] = replace(clean["raises"], num_missing=1)
    result = rewards_result(size, paced=paced, peak=peak, past=past, noise=Noise())
    assert "NOT WHOLE" in result.text()
