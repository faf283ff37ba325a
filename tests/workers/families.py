"""Metric families as plain values."""

from collections.abc import Iterable

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
