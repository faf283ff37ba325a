"""What the operator's tests share with the benchmark's, and with each other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bench.conftest import null_server
from tests.operator.cluster import ServedCluster, serving_cluster

__all__ = ["null_server"]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedCluster]:
    async with serving_cluster(tmp_path) as made:
        yield made
