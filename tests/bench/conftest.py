"""Servers that the benchmark's tests share."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_NULL_SERVER = Path(__file__).with_name("null_server.py")


@pytest.fixture(scope="session")
def null_server() -> Iterator[int]:
    """The port of a server in a process of its own that answers at once."""
    command = [sys.executable, str(_NULL_SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=10)
