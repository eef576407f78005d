"""Local services: a Kafka broker and a Redis-compatible server as plain processes on this machine.

`manager` starts, stops and reports them, `doctor` says what a machine lacks. Nothing here is imported by a stage: a
stage is given an address and does not care who runs the server.
"""
