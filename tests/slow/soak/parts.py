"""What runs, part by part: endpoints, and how services are asked, ended and found to be back."""

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from tests.stack.fetch import answers, get
from tests.stack.process import Process
from tests.stack.service import Service

# What else the machine does is nobody's fault.
LONG_S: Final = 300.0
_ASKED: Final = 30
_Answer = TypeVar("_Answer")


class SoakEndpoint(Process):
    """One simulated endpoint in a process of its own, with a log of its requests."""

    def __init__(self, directory: Path, port: int) -> None:
        self.served = directory / f"served-{port}.jsonl"
        command = [sys.executable, "-m", "tests.slow.soak.endpoint", str(port), str(self.served)]
        super().__init__(f"vllm-{port}", command, directory)
        self.port = port
        self.address = f"127.0.0.1:{port}"

    def is_ready(self) -> bool:
        return answers(f"http://{self.address}/health")

    def fail(self, **faults: float) -> None:
        """Answers with faults from now on; without any, with none."""
        request = urllib.request.Request(
            f"http://{self.address}/simulate/fail", json.dumps(faults).encode()
        )
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=LONG_S):
            pass

    def metric(self, name: str) -> float:
        lines = get(f"http://{self.address}/metrics").splitlines()
        named = [line for line in lines if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in named)


def read_requests(part: Service) -> float:
    return part.metric("extproc_requests_total")


def ask_patiently(ask: Callable[[], _Answer]) -> _Answer:
    """Asks again where nobody answers; raises `OSError` at last."""
    for _ in range(_ASKED):
        with suppress(OSError):
            return ask()
        time.sleep(1.0)
    return ask()


def holds(claim: Callable[[], bool]) -> bool:
    """Whether it holds; not, where nobody answers."""
    try:
        return claim()
    except OSError:
        return False
