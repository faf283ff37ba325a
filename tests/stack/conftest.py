"""One stack for all of these tests."""

import pytest

from tests.stack.shared import group_by_stack, pytest_runtest_makereport, shared_stack, stack

__all__ = ["pytest_runtest_makereport", "shared_stack", "stack"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_by_stack(items)
