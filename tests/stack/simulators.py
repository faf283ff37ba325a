"""Simulated vLLM endpoints in a process of their own."""

import sys
from pathlib import Path

from tests.stack.fetch import answers
from tests.stack.process import Process


class Simulators(Process):
    """`extproc simulate vllm`: one endpoint per port of a range."""

    def __init__(self, directory: Path, ports: range, *options: str, name: str = "vllm") -> None:
        command = [
            sys.executable,
            "-m",
            "extproc",
            "simulate",
            "vllm",
            "--ports",
            f"{ports[0]}-{ports[-1]}",
        ]
        super().__init__(name, [*command, *options], directory)
        self.ports = ports

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def is_ready(self) -> bool:
        return all(answers(f"http://{address}/health") for address in self.addresses)
