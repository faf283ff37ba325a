"""The shared stack as fixtures, and the ends of its logs in reports of failures; conftests import them."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.stack.stack import Stack
from tests.stack.variants import MODES


@pytest.fixture(scope="session")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("stack"), variants=MODES).running() as stack:
        yield stack


@pytest.fixture
def stack(shared_stack: Stack) -> Iterator[Stack]:
    """The shared stack, as every test finds it."""
    yield shared_stack
    shared_stack.restore()


def group_by_stack(items: list[pytest.Item]) -> None:
    """Keeps tests of one stack in one process."""
    for item in items:
        if "shared_stack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("stack"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for log in sorted(_logs(item)):
            lines = log.read_text(errors="replace").splitlines()
            report.sections.append((log.name, "\n".join(lines[-15:])))
    return report


def _logs(item: pytest.Function) -> list[Path]:
    used = item.funcargs.values()
    directories = [value for value in used if isinstance(value, Path) and value.is_dir()]
    directories += [value.gateway.log.parent for value in used if isinstance(value, Stack)]
    return [log for directory in directories for log in directory.glob("*.log")]
