"""An operator as a process, and what it is given."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.operator.cluster import ServedCluster
from tests.stack.ports import free_ports

Object = dict[str, Any]


def build_operator_spec(port: int, duration: float = 2.0, **more: Any) -> Object:
    shape = {"req-rate": 20, "duration": duration, "dataset": {"name": "random", "input_tokens": 8}}
    limits = {"lag-p99": 5, "loop-lag-p99": 5, "cpu": 5, "achieved": 0.1}
    base = {"endpoint": "127.0.0.1", "port": port, "target": {"model": "m"}, "limits": limits}
    return {**base, "performance": {"traffic-shape": shape}, **more}


class Container:
    """An operator in a process of its own, started again when it ends by itself, as the kubelet does."""

    def __init__(
        self,
        served: ServedCluster,
        image: str | None = "image:1",
        look: float = 1,
        user: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.starts = 0
        self._user, self._environment = user, environment
        self._cluster = served.cluster
        self._options = ["--namespace", "default", "--look", str(look)]
        self._options += ["--kubeconfig", str(served.kubeconfig)]
        self._options += ["--image", image] if image is not None else []
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._options += ["--listen", f"127.0.0.1:{port}"]
        if not user:  # another user may not read what the tests write
            (reports := served.cluster.folder / "reports").mkdir(exist_ok=True)
            self._options += ["--reports", str(reports)]
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        while True:
            self.starts += 1
            command = [*self._user, sys.executable, "-m", "extproc", "operate", *self._options]
            self._process = await asyncio.create_subprocess_exec(*command, env=self._environment)
            await self._process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(90):
                await self._process.wait()
        finally:
            self.kill()


@asynccontextmanager
async def operating(served: ServedCluster, **how: Any) -> AsyncIterator[Container]:
    """Runs an operator; leaving the block is its orderly end."""
    container = Container(served, **how)
    task = asyncio.create_task(container.run())
    try:
        yield container
    finally:
        task.cancel()
        await container.end()
