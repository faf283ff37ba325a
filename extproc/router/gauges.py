"""How a metric that several worker processes tell becomes one. Here stands the rule of every gauge.

Counters, histograms and summaries are sums, whatever they count; but for those that stand here, too.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class Rule(Enum):
    SUM = "sum"
    MOST = "most"
    LEAST = "least"
    COPY = "copy"
    """A counter of what happens once, of which every process has a copy: one of them is followed."""


# By family, as Prometheus' library names it: without `_total` and `_info`.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        # Each process counts its own requests.
        "extproc_endpoint_in_flight": Rule.SUM,
        "extproc_streams_open": Rule.SUM,
        "extproc_held_requests": Rule.SUM,
        # 1 as soon as one of them is in trouble.
        "extproc_config_refused": Rule.MOST,
        "extproc_pool_fault": Rule.MOST,
        # The oldest of what decisions are taken by.
        "extproc_pool_age_seconds": Rule.MOST,
        "extproc_objectives_age_seconds": Rule.MOST,
        "extproc_share_delay_seconds": Rule.MOST,
        # All processes know the same endpoints and gateways; each has its own experience with them. So the
        # worst state counts: see `_GOOD`.
        "extproc_pool_endpoints": Rule.MOST,
        "extproc_share_peers": Rule.MOST,
        # 1 while that holds for all.
        "extproc_share_fresh": Rule.LEAST,
        # 1, with what is the same for all in its labels.
        "extproc": Rule.MOST,
        # What endpoints tell of themselves: each process reads the same figures.
        "extproc_measured_tokens": Rule.COPY,
        # Memory is the container's, all of it; shared pages count more than once.
        "process_virtual_memory_bytes": Rule.SUM,
        "process_resident_memory_bytes": Rule.SUM,
        # Since when the service as a whole is there.
        "process_start_time_seconds": Rule.LEAST,
        # The limit is each process's own: the fullest of them counts.
        "process_open_fds": Rule.MOST,
        "process_max_fds": Rule.LEAST,
    }
)

# The states of which an endpoint or a gateway is only if all processes say so.
_GOOD: Final = frozenset(
    {("extproc_pool_endpoints", "ready"), ("extproc_share_peers", "prompt")},
)
_SUMS: Final = frozenset({"counter", "histogram", "summary"})


def rule_of(family: str, kind: str, state: str = "") -> Rule:
    """Returns the rule of a family of a type; `state` is what the label of that name says, if it has one.

    A gauge that is not known, as one that a single process has, counts by the most.
    """
    if (family, state) in _GOOD:
        return Rule.LEAST
    return RULES.get(family, Rule.SUM if kind in _SUMS else Rule.MOST)
