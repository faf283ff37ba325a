"""Runs against scripted servers: what several tests share."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp.web
import yaml
from click.testing import CliRunner, Result

from extproc.bench.commands import bench
from extproc.bench.progress import RunSnapshot
from extproc.bench.spec.tree import Spec
from tests.bench.scripted import DONE, USAGE, chunk
from tests.hosting import Handler, hosting


class Silence:
    """Implements `Progress` by keeping what it is told."""

    def __init__(self) -> None:
        self.snapshots: list[RunSnapshot] = []

    def update(self, snapshot: RunSnapshot) -> None:
        self.snapshots.append(snapshot)


def call(*arguments: object) -> Result:
    """Runs a command of `extproc bench`."""
    return CliRunner().invoke(bench, [*map(str, arguments)])


@contextmanager
def run_null_server(*options: str) -> Iterator[int]:
    """The port of a server in a process of its own that answers at once."""
    command = [sys.executable, str(Path(__file__).with_name("null_server.py")), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=10)


@asynccontextmanager
async def serving_null(**handlers: Handler) -> AsyncIterator[int]:
    """Serves `name=handler` at `/name`, and `chat` at the chat path."""
    paths = {"chat": "/v1/chat/completions", "models": "/v1/models"}
    async with hosting(
        {paths.get(name, f"/{name}"): each for name, each in handlers.items()}
    ) as address:
        yield int(address.rpartition(":")[2])


async def null_answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
    await request.read()
    headers = {"x-served-by": "10.0.0.1:8000"}
    return aiohttp.web.Response(body=chunk("bab ") + USAGE + DONE, headers=headers)


def build_tree(port: int, traffic: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A spec; how late the client is on a busy machine is no matter for it."""
    shape = {"dataset": {"name": "random", "input_tokens": 8}, **traffic}
    limits = {"lag-p99": 60, "loop-lag-p99": 60, "cpu": 60, "achieved": 0, "requests": 1}
    base = {"endpoint": "127.0.0.1", "port": port, "target": {"model": "m"}, "limits": limits}
    return {**base, "performance": {"traffic-shape": shape}, **fields}


def build_spec(port: int, traffic: dict[str, Any], **fields: Any) -> Spec:
    return Spec.model_validate(build_tree(port, traffic, **{"limits": {}, **fields}))


def write_spec(folder: Path, port: int, traffic: dict[str, Any], **fields: Any) -> str:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(build_tree(port, traffic, **fields)))
    return str(path)
