"""Servers that the benchmark's tests share."""

from collections.abc import Iterator

import pytest

from tests.bench.running import run_null_server


@pytest.fixture(scope="session")
def null_server() -> Iterator[int]:
    with run_null_server() as port:
        yield port
