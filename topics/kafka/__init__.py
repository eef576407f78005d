"""The log on Kafka: the only package that imports the client library.

`KafkaLog` is all that leaves it. Every error of the library is translated once, in `errors`, with the cause chained.
"""

from topics.kafka.log import KafkaLog

__all__ = ["KafkaLog"]
