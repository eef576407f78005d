"""Reading what `tc` and `ss` say."""

from __future__ import annotations

import pytest

from ops.netlab.counters import LinkBytes, parse_received_bytes, parse_sent_bytes
from ops.netlab.tools import NetlabError

TC = (
    '[{"kind":"noqueue","handle":"0:","dev":"lo","root":true,"bytes":7},'
    '{"kind":"tbf","handle":"8001:","dev":"p0","root":true,"options":{"rate":25000000},"bytes":43856348,"packets":9}]'
)
SS = """\
ESTAB 0 0   10.0.0.6:51234 10.0.0.1:7001  cubic wscale:10,10 rto:204 bytes_sent:90 bytes_received:5000 segs_out:3
ESTAB 0 0   10.0.0.6:51236 10.0.0.1:7001  cubic bytes_received:70 segs_out:3
ESTAB 0 0   10.0.0.6:7001  10.0.0.7:40000 cubic bytes_received:11
ESTAB 0 0   10.0.0.6:7001  10.0.0.8:40000 cubic bytes_sent:11
"""


def test_bytes_are_those_of_the_token_buckets() -> None:
    assert parse_sent_bytes(TC) == {"p0": 43856348}


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(NetlabError, match="no JSON"):
        parse_sent_bytes("Cannot open")


def test_connections_of_one_other_side_are_added_up() -> None:
    assert parse_received_bytes(SS) == {"10.0.0.1": 5070, "10.0.0.7": 11}


def test_a_difference_is_taken_link_by_link() -> None:
    before = LinkBytes(up={"h": 1}, down={"h": 2}, crossed={"a": 3})
    after = LinkBytes(up={"h": 11}, down={"h": 22}, crossed={"a": 33})
    assert after.since(before) == LinkBytes(up={"h": 10}, down={"h": 20}, crossed={"a": 30})
