"""What the benchmark and its nodes say survives the way, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from ops.bench.weights import words


@pytest.mark.parametrize(
    "order",
    [
        words.Serve(root="store", host="10.0.0.1", port=7001, token="t", max_bytes=5, tell_at_bytes=2),
        words.Fetch(manifest_file="m", at_s=1.5, limit_s=9.0, seeds=["http://a:1"], peers=["http://b:1"], swarm="s"),
        words.Check(manifest_file="m"),
        words.Count(),
        words.Stop(),
    ],
)
def test_orders_come_back_as_they_were(order: words.Order) -> None:
    assert words.decode_order(words.encode(order)) == order


@pytest.mark.parametrize(
    "answer",
    [
        words.Hello(pid=3),
        words.Serving(url="http://a:1"),
        words.Reached(num_bytes=4),
        words.Done(at_s=2.5, bytes_fetched=3, bytes_local=1, notices=["slow"]),
        words.Failed(message="why"),
        words.Checked(num_bytes=4),
        words.Counted(pid=3, served_bytes=5, cpu_s=0.25),
        words.Stopped(),
    ],
)
def test_answers_come_back_as_they_were(answer: words.Answer) -> None:
    assert words.decode_answer(words.encode(answer)) == answer


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"kind":"Stopped"}', b'{"kind":"Serve","root":"x"}', b"\xff"])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(words.BenchError, match="was told or said"):
        words.decode_order(line)
