"""What tests stand on: ports that nobody else gets, and waits whose failure can be read."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.stack.ports import free_ports
from tests.waiting import wait_until

_TAKE = """
from tests.stack.ports import free_ports
print(*[port for _ in range(200) for port in free_ports(2)], flush=True)
input()
"""


def test_ports_of_one_process_are_not_handed_out_again_before_they_are_bound() -> None:
    taken = [port for _ in range(50) for port in free_ports(3)]

    assert len(set(taken)) == len(taken)


def test_two_processes_never_get_the_same_ports() -> None:
    with ExitStack() as stack:
        command, pipe = [sys.executable, "-c", _TAKE], subprocess.PIPE
        both = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            for _ in range(2)
        ]
        one, other = [process.stdout.readline().split() for process in both if process.stdout]
        for process in both:
            process.communicate("\n", 60)

    assert len(one) == len(other) == 400
    assert not {*one} & {*other}


def test_failure_of_a_wait_is_short() -> None:
    with pytest.raises(
        AssertionError, match=r"not true after 0 s: x{2000}… \(1,000,000 characters\)$"
    ):
        wait_until(lambda: False, lambda: "x" * 1_000_000, 0)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs them all")
def test_tests_of_one_file_stay_in_one_process(request: pytest.FixtureRequest) -> None:
    # pytest-xdist writes the group behind the name; a pytest whose names it cannot change splits
    # every file.
    assert request.node.nodeid.endswith("@tests/test_helpers.py")
