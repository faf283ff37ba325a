"""What every test shares."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Times depend on the machine and its other work: no example fails for having been slow. The gate
# tries few examples, the same each time; `make test-slow` many.
settings.register_profile("gate", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("slow", deadline=None, max_examples=300, derandomize="CI" in os.environ)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, so that its fixtures are made once; other groups stay."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """A command that a test runs in this process sets levels; the next test has those from before."""
    loggers = [logging.getLogger(name) for name in ("", "extproc", "kubernetes")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
