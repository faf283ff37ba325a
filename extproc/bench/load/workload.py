"""A run, worked out before it begins: which conversations, how many, and when each starts."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from pydantic import ValidationError

from extproc.bench.datasets.conversation import Conversation
from extproc.bench.datasets.prepare import prepare
from extproc.bench.load.registry import DATASET_OPTIONS, Registry
from extproc.bench.load.shapes import Times, build_schedule, build_shape, count_due
from extproc.bench.spec.section import SpecSection, list_faults
from extproc.bench.spec.traffic import TrafficShape
from extproc.bench.spec.tree import Spec
from extproc.documents import describe_options
from extproc.errors import SettingsError

# Requests that a generated dataset provides when the server's speed decides how many are made.
_UNKNOWN_NEED = 10_000
# More is no schedule that anybody means, but a source that gives no more however much is asked of
# it.
_MOST_NEED = 2_000_000


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
    schedule spans `span_s`: the duration, or if the count ends it, one mean gap beyond its last
    start. `left_out`: rows of the dataset's file that became nothing, by reason.
    """

    conversations: tuple[Conversation, ...]
    starts_s: tuple[float, ...] | None
    jobs: int | None
    requests: int | None
    span_s: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def prompts(self) -> int:
        """How many requests the dataset holds before it begins again."""
        return Numbering(self.conversations).per_cycle

    @property
    def turns_mean(self) -> float:
        return self.prompts / len(self.conversations)

    @property
    def total(self) -> int:
        """How many requests the workload makes; of a closed loop bound by time only, one cycle."""
        if self.requests is not None:
            return self.requests
        if self.starts_s is not None:
            return max(1, round(len(self.starts_s) * self.turns_mean))
        return self.prompts

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
    try:
        workload = _build(spec, registry)
    except ValidationError as error:
        raise SettingsError(f"traffic-shape: {list_faults(error)}") from None
    except ValueError as error:
        raise SettingsError(f"traffic-shape: {error}") from None
    _check_window(traffic, workload)
    return replace(workload, left_out=dict(registry.left_out))


def _build(spec: Spec, registry: Registry) -> Workload:
    traffic = spec.traffic
    need = _estimate_need(traffic, registry)
    workload = _arrange(spec, registry, _prepare(spec, registry, need))
    # Sessions of fewer turns than on average, or filters, leave a generated dataset short.
    while need < (wanted := _count_missing(workload, traffic, need)):
        need = wanted
        workload = _arrange(spec, registry, _prepare(spec, registry, need))
    return workload


def _arrange(spec: Spec, registry: Registry, conversations: tuple[Conversation, ...]) -> Workload:
    traffic = spec.traffic
    requests = _bound(traffic, conversations)
    numbering = Numbering(conversations)
    jobs = None if requests is None else numbering.count_conversations(requests)
    if traffic.is_closed:
        return Workload(conversations, None, jobs, requests)
    # The first seed is the dataset's.
    rng = np.random.default_rng(np.random.SeedSequence(spec.seed).spawn(2)[1])
    if traffic.shape.name == "trace":
        starts = _read_arrivals(traffic, conversations)[:jobs]
    else:
        turns_mean = sum(len(c.turns) for c in conversations) / len(conversations)
        shape = build_shape(traffic, registry.shape(traffic.shape.name), turns_mean)
        starts = build_schedule(traffic, shape, jobs, rng)
    if not len(starts):
        raise SettingsError(
            "traffic-shape: the schedule has no start; give it more time or a higher rate"
        )
    span_s = float(starts[-1]) * (1 + 1 / max(1, len(starts) - 1))
    if traffic.duration is not None and len(starts) != jobs:
        span_s = traffic.duration
    return Workload(conversations, tuple(starts.tolist()), len(starts), requests, span_s)


def _prepare(spec: Spec, registry: Registry, need: int) -> tuple[Conversation, ...]:
    dataset, (seed, _) = spec.traffic.dataset, np.random.SeedSequence(spec.seed).spawn(2)
    try:
        return tuple(
            prepare(spec.traffic, registry.dataset(dataset.name), need, seed, registry.ruler)
        )
    except ValidationError as error:
        model = DATASET_OPTIONS.get(dataset.name, SpecSection)
        faults = describe_options(error, ("dataset", dataset.name), dataset, model)
        raise SettingsError("\n".join(text for _, text in faults)) from None


def _check_window(traffic: TrafficShape, workload: Workload) -> None:
    """Refuses a run of which nothing would be measured."""
    span_s = workload.span_s or traffic.duration
    if span_s is None or traffic.is_queued:
        return
    left_s = span_s - traffic.warm_up - traffic.cool_down
    if left_s <= 1e-9 * span_s:
        raise SettingsError(
            f"warm-up ({traffic.warm_up:g} s) and cool-down ({traffic.cool_down:g} s) leave nothing of "
            f"{span_s:.1f} s to measure"
        )


def _read_arrivals(traffic: TrafficShape, conversations: Sequence[Conversation]) -> Times:
    arrivals = [c.arrival_s for c in conversations if c.arrival_s is not None]
    if len(arrivals) < len(conversations) or traffic.dataset.is_shuffled:
        raise ValueError("shape trace needs a dataset with arrival times, in order")
    starts = np.array(arrivals) - arrivals[0]
    return starts if traffic.duration is None else starts[starts < traffic.duration]


def _estimate_need(traffic: TrafficShape, registry: Registry) -> int:
    """Returns how many requests a generated dataset should provide without repeating itself.

    That is what the schedule will ask for, spikes, ramps and steps included.
    """
    dataset = traffic.dataset
    if traffic.total_prompts is not None:
        wanted = traffic.total_prompts
    elif traffic.duration is None or traffic.req_rate is None:
        wanted = _UNKNOWN_NEED
    else:
        wanted = count_due(traffic, build_shape(traffic, registry.shape(traffic.shape.name)))
    wanted = math.ceil(wanted / dataset.repeat)
    return max(1, wanted if dataset.max_prompts is None else min(wanted, dataset.max_prompts))


def _count_missing(workload: Workload, traffic: TrafficShape, need: int) -> int:
    """Returns a larger need if the starts are more than a dataset that could be larger holds, else `need`."""
    held = len(workload.conversations)
    starts = max(len(workload.starts_s or ()), traffic.total_conversations or 0)
    if traffic.dataset.is_bounded or starts <= held or need >= _MOST_NEED:
        return need
    return min(_MOST_NEED, math.ceil(need * starts / held) + 1)


def _bound(traffic: TrafficShape, conversations: Sequence[Conversation]) -> int | None:
    """Returns how many requests are made at most; `None` if only time ends the run."""
    numbering = Numbering(conversations)
    if traffic.total_prompts is None and traffic.total_conversations is None:
        return None if traffic.duration is not None else numbering.per_cycle
    counts = [numbering.first_index(number) for number in (traffic.total_conversations,) if number]
    return min([*counts, *([traffic.total_prompts] if traffic.total_prompts else [])])
