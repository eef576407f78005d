"""The hands: command line, local services, supervisor, replay, audit, report, benchmarks."""
