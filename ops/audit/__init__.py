"""Proof from the topics alone that every sample id has one outcome (promise 1).

`read` feeds a run's records into `fold`, which keeps compact columns; `checks_*` compare the columns; `report` says it.
"""
