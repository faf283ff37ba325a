"""Prometheus Operator 0.86: monitoring.coreos.com/v1 (prometheus-operator/prometheus-operator).

What the monitors and rules of ours have, and no more.
"""

from typing import Final

from tests.manifests.crds import words as w

DURATION: Final[w.Schema] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}
SELECTOR: Final = w.record("", matchLabels=w.LABELS)
SCRAPES: Final = w.some(
    w.record("port", port=w.NAME, path=w.TEXT, interval=DURATION, honorLabels=w.FLAG)
)
# `for` is a word of Python's.
RULE: Final = w.record(
    "expr",
    record=w.TEXT,
    alert=w.TEXT,
    expr=w.TEXT,
    labels=w.LABELS,
    annotations=w.STRINGS,
    **{"for": DURATION},
) | w.exactly_one("alert", "record")
RULES: Final = w.record(
    "groups",
    groups=w.some(w.record("name rules", name=w.TEXT, interval=DURATION, rules=w.some(RULE))),
)

SCHEMAS: Final = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): w.resource(
        w.record("selector endpoints", selector=SELECTOR, endpoints=SCRAPES)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): w.resource(RULES),
    ("monitoring.coreos.com/v1", "PodMonitor"): w.resource(
        w.record("selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=SCRAPES)
    ),
}
