"""Everything below is slow: `make test-slow` runs it, the gate does not. One Envoy has all variants."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slow.stack.variants import VARIANTS
from tests.stack.browser import Browser
from tests.stack.shared import group_by_stack, pytest_runtest_makereport, stack
from tests.stack.stack import Stack

__all__ = ["pytest_runtest_makereport", "stack"]

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    names = [
        word for model in ("simulated", "llama-3", "qwen-2", "other") for word in ("--model", model)
    ]
    directory = tmp_path_factory.mktemp("stack")
    with Stack(directory, variants=VARIANTS, simulate=["--speed", "10", *names]).running() as stack:
        yield stack


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        running.wait_ready()
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in mine:
        item.add_marker(pytest.mark.slow)
    group_by_stack(mine)
