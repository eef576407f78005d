"""A library whose modules import one another is imported by one thread at a time."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import threading
from consumers.rewards.builtin import ReasoningGym
from pipeline.sources.reasoning_library import reasoning_library

found, start = [], threading.Barrier(8)

def work(number):
    start.wait()
    found.append(ReasoningGym() if number % 2 else reasoning_library().create_dataset)

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found))
"""


def test_threads_that_need_it_at_once_all_get_the_whole_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("8\n", "")
