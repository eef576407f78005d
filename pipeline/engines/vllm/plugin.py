"""vLLM calls this in every process of its own (entry point group `vllm.general_plugins`).

Role: makes our transfer engine known under `BACKEND`; the marks are how its errors are told apart in the caller.
Failure: none; a second call in one process does nothing.
"""

from __future__ import annotations

BACKEND = "rlweave_sealed_file"
REFUSED = "rlweave-refused: "  # nothing was changed
BROKEN = "rlweave-broken: "  # the weights may be a mix


def register() -> None:
    """Register the transfer engine; its module is imported when vLLM makes one."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415 - heavy

    try:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "pipeline.engines.vllm.transfer", "SealedFileTransferEngine"
        )
    except ValueError:  # registered before, in this process
        return
