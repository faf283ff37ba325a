"""What the process is told about threads and memory, so that long bodies are nobody else's business."""

import ctypes
import sys
from typing import Final

# A thread that reads a long body lets the loop go on after this much; Python's own 5 ms would be felt.
SWITCH_S: Final = 0.0001
# Blocks from this size on are the kernel's: one that grows is moved by its pages, not by copying 31 MB, and
# what is freed leaves the process. Without it glibc raises its own limit to the largest block it has freed.
BLOCK_BYTES: Final = 1_048_576
_M_MMAP_THRESHOLD: Final = -3  # malloc.h


def prepare_for_long_bodies() -> None:
    sys.setswitchinterval(SWITCH_S)
    # Only glibc has it; others keep large blocks apart by themselves.
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, BLOCK_BYTES)
