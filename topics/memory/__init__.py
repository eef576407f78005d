"""A log in memory, with the interface and the semantics of the one on Kafka, for tests and the simulator."""

from topics.memory.log import MemoryLog
from topics.memory.store import MemoryBroker

__all__ = ["MemoryBroker", "MemoryLog"]
