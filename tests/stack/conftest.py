"""Stacks for the integration tests; a failed test shows the ends of its processes' logs."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.stack.stack import Stack, run_stack


@pytest.fixture(scope="session", params=["native", "grpcio"])
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """One stack for all tests that leave it as they found it; they run on both transports."""
    with run_stack(tmp_path_factory.mktemp("stack"), transport=request.param) as stack:
        yield stack


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
