"""Prometheus Operator 0.86: monitoring.coreos.com/v1 (prometheus-operator/prometheus-operator).

What the monitors and rules of ours have, and no more.
"""

from typing import Final

from tests.manifests.crds.words import (
    FLAG,
    LABELS,
    NAME,
    STRINGS,
    TEXT,
    Schema,
    exactly_one,
    record,
    resource,
    some,
)

DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}
SELECTOR: Final = record("", matchLabels=LABELS)
SCRAPES: Final = some(record("port", port=NAME, path=TEXT, interval=DURATION, honorLabels=FLAG))
# `for` is a word of Python's.
RULE: Final = record(
    "expr", record=TEXT, alert=TEXT, expr=TEXT, labels=LABELS, annotations=STRINGS, **{"for": DURATION}
) | exactly_one("alert", "record")
RULES: Final = record(
    "groups", groups=some(record("name rules", name=TEXT, interval=DURATION, rules=some(RULE)))
)

SCHEMAS: Final = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): resource(
        record("selector endpoints", selector=SELECTOR, endpoints=SCRAPES)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): resource(RULES),
    ("monitoring.coreos.com/v1", "PodMonitor"): resource(
        record("selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=SCRAPES)
    ),
}
