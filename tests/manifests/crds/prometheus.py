"""Prometheus Operator 0.86: monitoring.coreos.com/v1 (prometheus-operator/prometheus-operator).

What the monitors of ours have, and no more.
"""

from typing import Final

from tests.manifests.crds.words import LABELS, NAME, TEXT, Schema, record, resource, some

DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}
SELECTOR: Final = record("", matchLabels=LABELS)
SCRAPES: Final = some(record("port", port=NAME, path=TEXT, interval=DURATION))

SCHEMAS: Final = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): resource(
        record("selector endpoints", selector=SELECTOR, endpoints=SCRAPES)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): resource(
        record("selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=SCRAPES)
    ),
}
