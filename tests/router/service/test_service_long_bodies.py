"""What the process is told so that long bodies are nobody else's business."""

import sys

from extproc.router.service.process import SWITCH_S, prepare_for_long_bodies


def test_a_thread_that_reads_lets_the_loop_go_on_soon() -> None:
    before_s = sys.getswitchinterval()
    try:
        prepare_for_long_bodies()

        assert abs(sys.getswitchinterval() - SWITCH_S) < 1e-6
    finally:
        sys.setswitchinterval(before_s)
