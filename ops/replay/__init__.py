"""Reads records back from any topic of a run: to a person, to a file, to another topic. Commits nothing.

`sources` is where records come from (a broker, or a dump), `select` which, `show` and `sinks` where they go.
"""
