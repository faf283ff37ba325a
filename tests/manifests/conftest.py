"""Every overlay is rendered once, before the first test, and all tests of them run in one process."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.manifests.rendering import APPLICABLE, render


@pytest.fixture(scope="session", autouse=True)
def every_overlay() -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(render, APPLICABLE))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("manifests"))
