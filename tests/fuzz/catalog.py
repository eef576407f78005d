"""Every decoder, by name."""

from __future__ import annotations

from tests.fuzz.decoder import Decoder
from tests.fuzz.peers import PEERS
from tests.fuzz.ranks import RANKS
from tests.fuzz.records import RECORDS
from tests.fuzz.runs import RUNS
from tests.fuzz.scorers import SCORERS
from tests.fuzz.stored import STORED
from tests.fuzz.weights import WEIGHTS

DECODERS: dict[str, Decoder] = {
    each.name: each for each in (*RECORDS, *WEIGHTS, *PEERS, *RUNS, *STORED, *RANKS, *SCORERS)
}
