"""vLLM calls this in every process of its own (entry point group `vllm.general_plugins`).

Role: makes our transfer engine known under `BACKEND`; the marks are how its errors are told apart in the caller.
Invariants: vLLM's process ends with the one that started it, also after a `kill -9`; it would stay behind otherwise.
Failure: none; a second call in one process does nothing.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

BACKEND = "rlweave_sealed_file"
REFUSED = "rlweave-refused: "  # nothing was changed
BROKEN = "rlweave-broken: "  # the weights may be a mix
_PR_SET_PDEATHSIG = 1


def register() -> None:
    """Register the transfer engine; its module is imported when vLLM makes one."""
    _end_with_parent()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415 - heavy

    try:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "pipeline.engines.vllm.transfer", "SealedFileTransferEngine"
        )
    except ValueError:  # registered before, in this process
        return


def _end_with_parent() -> None:
    """In a process that vLLM spawned: ask the kernel for SIGKILL when the parent is gone (prctl(2))."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:  # it went before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)
