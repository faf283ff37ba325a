"""A run, worked out before it begins: which conversations, how many, and when each starts."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from pydantic import ValidationError

from extproc.bench.datasets.conversation import Conversation
from extproc.bench.datasets.prepare import prepare
from extproc.bench.load.registry import Registry
from extproc.bench.load.schedule import build_schedule, build_shape
from extproc.bench.load.shapes import Times
from extproc.bench.spec.section import list_faults
from extproc.bench.spec.traffic import TrafficShape
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError

# Requests that a generated dataset provides when only the server's speed will tell how many are made.
_UNKNOWN_NEED = 10_000


class Numbering:
    """Gives every request of a run its index: conversation `n` is the dataset's `n`-th, cycled."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._firsts = [0, *accumulate(len(c.turns) for c in conversations)]

    @property
    def per_cycle(self) -> int:
        return self._firsts[-1]

    def first_index(self, number: int) -> int:
        """Returns the index of the first request of conversation `number`."""
        cycles, place = divmod(number, len(self._firsts) - 1)
        return cycles * self.per_cycle + self._firsts[place]

    def count_conversations(self, requests: int) -> int:
        """Returns how many conversations hold the first `requests` requests."""
        cycles, rest = divmod(requests, self.per_cycle)
        return cycles * (len(self._firsts) - 1) + bisect.bisect_left(self._firsts, rest)


@dataclass(frozen=True, slots=True)
class Workload:
    """`starts_s` are the conversations' starts in an open loop, `None` in a closed one.

    `jobs` conversations are begun (`None`: until time is up), `requests` requests made at most. The
    schedule spans `span_s`: the duration, or if the count ends it, one mean gap beyond its last start.
    """

    conversations: tuple[Conversation, ...]
    starts_s: tuple[float, ...] | None
    jobs: int | None
    requests: int | None
    span_s: float | None = None

    @property
    def turns_mean(self) -> float:
        return Numbering(self.conversations).per_cycle / len(self.conversations)

    @property
    def offered_rps(self) -> float | None:
        """Requests per second that the schedule asks for; `None` if all at once or in a closed loop."""
        if not self.starts_s or not self.span_s:
            return None
        requests = min(len(self.starts_s) * self.turns_mean, self.requests or math.inf)
        return requests / self.span_s


def build_workload(spec: Spec, registry: Registry) -> Workload:
    """Builds dataset and schedule, the same for the same seed.

    Raises `SettingsError` for a dataset that cannot be read or a schedule that cannot be built.
    """
    traffic = spec.traffic
    dataset_seed, arrival_seed = np.random.SeedSequence(spec.seed).spawn(2)
    source = registry.dataset(traffic.dataset.name)
    try:
        conversations = tuple(prepare(traffic, source, _estimate_need(traffic), dataset_seed))
    except ValidationError as error:
        raise SettingsError(f"dataset {traffic.dataset.name}: {list_faults(error)}") from None
    requests = _bound(traffic, conversations)
    numbering = Numbering(conversations)
    jobs = None if requests is None else numbering.count_conversations(requests)
    if traffic.is_closed:
        return Workload(conversations, None, jobs, requests)
    try:
        starts = _build_starts(traffic, conversations, registry, jobs, np.random.default_rng(arrival_seed))
    except ValueError as error:
        raise SettingsError(f"traffic-shape: {error}") from None
    if not len(starts):
        raise SettingsError("traffic-shape: the schedule has no start; give it more time or a higher rate")
    span_s = float(starts[-1]) * (1 + 1 / max(1, len(starts) - 1))
    if traffic.duration is not None and len(starts) != jobs:
        span_s = traffic.duration
    return Workload(conversations, tuple(starts.tolist()), len(starts), requests, span_s)


def _build_starts(
    traffic: TrafficShape,
    conversations: Sequence[Conversation],
    registry: Registry,
    jobs: int | None,
    rng: np.random.Generator,
) -> Times:
    if traffic.shape.name == "trace":
        return _read_arrivals(traffic, conversations)[:jobs]
    turns_mean = sum(len(c.turns) for c in conversations) / len(conversations)
    shape = build_shape(traffic, registry.shape(traffic.shape.name), turns_mean)
    return build_schedule(traffic, shape, jobs, rng)


def _read_arrivals(traffic: TrafficShape, conversations: Sequence[Conversation]) -> Times:
    arrivals = [c.arrival_s for c in conversations if c.arrival_s is not None]
    if len(arrivals) < len(conversations) or traffic.dataset.is_shuffled:
        raise ValueError("shape trace needs a dataset with arrival times, in order")
    starts = np.array(arrivals) - arrivals[0]
    return starts if traffic.duration is None else starts[starts < traffic.duration]


def _estimate_need(traffic: TrafficShape) -> int:
    """Returns how many requests a generated dataset should provide without repeating itself."""
    if traffic.total_prompts is not None:
        return min(traffic.total_prompts, traffic.dataset.max_prompts or traffic.total_prompts)
    if traffic.dataset.max_prompts is not None:
        return traffic.dataset.max_prompts
    if traffic.req_rate and traffic.duration:
        return math.ceil(traffic.req_rate * traffic.duration)
    return _UNKNOWN_NEED


def _bound(traffic: TrafficShape, conversations: Sequence[Conversation]) -> int | None:
    if traffic.total_prompts is None and traffic.duration is None:
        return sum(len(c.turns) for c in conversations)
    return traffic.total_prompts
