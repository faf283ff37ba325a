"""Metric families as plain values."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric


def values(families: Iterable[Metric]) -> dict[str, float]:
    """Samples by name and the values of their labels: `name{a,b}`."""
    return {
        sample.name + (f"{{{','.join(sample.labels.values())}}}" if sample.labels else ""): sample.value
        for family in families
        for sample in family.samples
    }


def value(families: Iterable[Metric], sample: str) -> float:
    return values(families)[sample]


def total(told: Mapping[str, float], name: str) -> float:
    """The sum of a metric's samples."""
    return sum(one for sample, one in told.items() if sample.partition("{")[0] == name)
