"""The click commands of `extproc bench`: what they read, print and exit with; the work is done elsewhere."""

from extproc.bench.commands.runs import DOES_NOT_HOLD, THRESHOLD_MISSED, bench

__all__ = ["DOES_NOT_HOLD", "THRESHOLD_MISSED", "bench"]
