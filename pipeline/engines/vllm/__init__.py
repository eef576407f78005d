"""vLLM behind the engine protocol: its core in a process of its own, weights through its weight-transfer interface.

`engine.py` is the protocol's side, `host.py` the thread that talks to vLLM, `transfer.py` what runs in vLLM's worker.
"""
