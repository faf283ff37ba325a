"""Thresholds: what a run's figures must meet, such as `ttft_ms.p95 < 500` and `failed < 1%`."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator

_CLAIM = re.compile(r"([a-z0-9_]+)(?:\.([a-z0-9]+))?\s*(<=|>=|<|>)\s*(\d+(?:\.\d+)?)\s*(%|ms|s)?")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
LATENCIES = (
    "ttft",
    "ttft_sent",
    "e2e",
    "e2e_sent",
    "tpot",
    "ntpot",
    "time_per_token",
    "itl",
    "lag",
    "held",
)
SHARES = ("failed", "hit_rate", "goodput")
RATES = ("req_per_s", "output_tok_per_s", "total_tok_per_s")
# k6's names are understood, too.
_POINTS: Mapping[str, str] = MappingProxyType(
    {
        name: name
        for name in ("mean", "min", "p25", "p50", "p75", "p90", "p95", "p99", "p999", "max")
    }
    | {"avg": "mean", "med": "p50", "median": "p50"}
)


@dataclass(frozen=True, slots=True)
class Claim:
    """One threshold. `point` is a field of a latency's summary; `bound` is in ms, per second, or a share."""

    figure: str
    point: str | None
    comparison: str
    bound: float

    def holds(self, value: float) -> bool:
        return _COMPARE[self.comparison](value, self.bound)


def parse_claim(text: str) -> Claim:
    """Reads `figure[.point] < bound`; raises `ValueError` that says what there is."""
    found = _CLAIM.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no threshold such as `ttft_ms.p95 < 500` or `failed < 1%`")
    name, point, comparison, number, unit = found.groups()
    latency = name.removesuffix("_ms")
    if latency in LATENCIES:
        if point is None or point not in _POINTS:
            raise ValueError(
                f"{text!r}: say which value of the latency: one of {', '.join(_POINTS)}"
            )
        if unit == "%":
            raise ValueError(f"{text!r}: a latency is not in %")
        return Claim(
            latency, _POINTS[point], comparison, float(number) * (1000 if unit == "s" else 1)
        )
    if name not in SHARES + RATES or point:
        names = ", ".join([*(f"{each}_ms.p95" for each in LATENCIES), *SHARES, *RATES])
        raise ValueError(f"{text!r}: there is no such figure; there are {names}")
    if unit not in ({None, "%"} if name in SHARES else {None}):
        raise ValueError(f"{text!r}: {name} is not in {unit}")
    return Claim(name, None, comparison, float(number) / (100 if unit == "%" else 1))


def _check(text: str) -> str:
    parse_claim(text)
    return text


Threshold = Annotated[str, AfterValidator(_check)]
