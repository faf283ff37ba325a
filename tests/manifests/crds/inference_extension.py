"""The Inference Extension 1.x: inference.networking.k8s.io/v1 and …x-k8s.io/v1alpha2, llm-d.ai/v1alpha2.

Whole kinds, read in kubernetes-sigs/gateway-api-inference-extension, and in llm-d/llm-d-router of
2026, which took objectives over. 1.0 itself allows one target port; up to 8, and `appProtocol`,
came after it.
"""

from typing import Final

from tests.manifests.crds.words import (
    GROUP,
    INT32,
    KIND,
    LABELS,
    NAME,
    PORT,
    one_of,
    record,
    resource,
    some,
)

POOL: Final = record(
    "selector targetPorts endpointPickerRef",
    selector=record("matchLabels", matchLabels=LABELS | {"minProperties": 1, "maxProperties": 64}),
    targetPorts=some(record("number", number=PORT), 8) | {"uniqueItems": True},
    appProtocol=one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=record(
        "name",
        group=GROUP,
        kind=KIND,
        name=NAME,
        port=record("number", number=PORT),
        failureMode=one_of("FailOpen", "FailClose"),
    )
    | {"if": {"properties": {"kind": {"const": "Service"}}}, "then": {"required": ["port"]}},
)
OBJECTIVE: Final = record(
    "poolRef", priority=INT32, poolRef=record("name", group=GROUP, kind=KIND, name=NAME)
)

SCHEMAS: Final = {
    ("inference.networking.k8s.io/v1", "InferencePool"): resource(POOL),
    ("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective"): resource(OBJECTIVE),
    ("llm-d.ai/v1alpha2", "InferenceObjective"): resource(OBJECTIVE),
}
