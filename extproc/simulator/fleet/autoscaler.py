"""An autoscaler: how many endpoints there should be, by what they say. Pure: times and values are given.

The rule is that of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), after its documentation:
the pages "Horizontal Pod Autoscaling", "Algorithm details" and "Configurable scaling behavior",
with the defaults that it names.

- desired = ceil(current * value / target), the value being the mean over the endpoints.
- Within a tolerance of 10 % nothing happens.
- Endpoints without metrics yet count as 0 where the others need more, and as the target where they
  need for fewer; if that turns the direction around, nothing happens.
- Fewer only as far as no recommendation within the stabilisation window was for more.
- In 15 s at most twice as many as before them, or 4 more, whichever is more.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import ceil
from typing import Annotated, Final

from msgspec import Meta, Struct, ValidationError, convert

from extproc.documents import parse_document
from extproc.errors import SettingsError

TOLERANCE: Final = 0.1
_GROWTH_S: Final = 15.0
_GROWTH_TIMES, _GROWTH_MORE = 2, 4


class Metric(StrEnum):
    """The metric of an endpoint; the first three are vLLM's own gauges, at the end of its last step."""

    QUEUE = "queue"  # vllm:num_requests_waiting
    RUNNING = "running"  # vllm:num_requests_running
    KV_USAGE = "kv_usage"  # vllm:kv_cache_usage_perc
    IN_FLIGHT = "in_flight"  # extproc_endpoint_in_flight: what the gateways count


Above = Annotated[float, Meta(gt=0)]
Delay = Annotated[float, Meta(ge=0)]


class Scaling(Struct, frozen=True, forbid_unknown_fields=True):
    """How a fleet is scaled: `target` is what each endpoint should have of the metric.

    It is looked every `every_s` seconds, at values that are `lag_s` old: scraped, stored, queried.
    An new endpoint is ready after `start_s`, with an empty cache. `window_s` is the stabilisation
    window for fewer endpoints.
    """

    metric: Metric
    target: Above
    min: Annotated[int, Meta(ge=1)] = 1
    max: int = 16
    every_s: Above = 15.0
    lag_s: Delay = 15.0
    start_s: Delay = 60.0
    window_s: Delay = 300.0

    def __post_init__(self) -> None:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        if self.metric is Metric.KV_USAGE and self.target > 1:
            raise ValueError("target is a share of the KV cache, at most 1")


SYNTAX: Final = "METRIC:target=…[,OPTION=VALUE,…]"


def parse_scaling(text: str) -> Scaling:
    """Reads `METRIC:target=4,max=12,…`; raises `SettingsError`."""
    name, _, written = text.partition(":")
    if name not in [*Metric]:
        raise SettingsError(f"{text!r}: {name!r} is no metric: choose from {', '.join(Metric)}")
    try:
        options = parse_document("{" + written.replace("=", ": ") + "}", "autoscale").tree
    except SettingsError:
        raise SettingsError(f"{text!r} is no autoscaler: write {SYNTAX}") from None
    try:
        return convert({"metric": name, **options}, Scaling)
    except ValidationError as fault:
        raise SettingsError(f"{text!r}: {fault}") from None


class Autoscaler:
    """Says how many endpoints there should be; remembers what it said within the windows."""

    def __init__(self, scaling: Scaling, current: int, now: float) -> None:
        self._scaling = scaling
        self._wanted: deque[tuple[float, int]] = deque([(now, current)])
        self._moved: deque[tuple[float, int]] = deque()

    def decide(self, values: Sequence[float], current: int, now: float) -> int:
        """Takes what those endpoints said that could; `current` counts those that start, too."""
        scaling = self._scaling
        wanted = self._stabilize(recommend(values, current, scaling.target), current, now)
        decided = max(scaling.min, min(wanted, scaling.max, self._most(current, now)))
        self._moved.append((now, decided - current))
        return decided

    def _stabilize(self, wanted: int, current: int, now: float) -> int:
        """Lets fewer be no fewer than the most that was wanted in the window."""
        _forget(self._wanted, now - self._scaling.window_s)
        self._wanted.append((now, wanted))
        return (
            wanted if wanted >= current else min(current, max(count for _, count in self._wanted))
        )

    def _most(self, current: int, now: float) -> int:
        _forget(self._moved, now - _GROWTH_S)
        before = current - sum(count for _, count in self._moved)
        return max(_GROWTH_TIMES * before, before + _GROWTH_MORE)


def _forget(recommendations: deque[tuple[float, int]], until_s: float) -> None:
    while recommendations and recommendations[0][0] <= until_s:
        recommendations.popleft()


def recommend(values: Sequence[float], current: int, target: float) -> int:
    """The rule without its memory: how many endpoints have the target each, by what some of them said."""
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    silent = current - len(values)
    if _is_near(ratio):
        return current
    # Carefully: an endpoint without metrics has nothing to do, or just enough.
    supposed = 0.0 if ratio > 1 else silent * target
    careful = (sum(values) + supposed) / current / target
    if _is_near(careful) or (careful > 1) != (ratio > 1):
        return current
    return ceil(careful * current)


def _is_near(ratio: float) -> bool:
    return abs(ratio - 1) <= TOLERANCE
