"""Istio 1.29: networking.istio.io, as its chart's CustomResourceDefinitions have it (istio/istio, 1.29.2).

What an EnvoyFilter puts into Envoy's configuration is Envoy's to judge: a test starts one with it.
"""

from typing import Final

from tests.manifests.crds import words as w

# A protobuf Duration of at least a millisecond, as Go writes it.
DURATION: Final[w.Schema] = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$"}

HTTP_POOL: Final = w.record(
    "",
    http1MaxPendingRequests=w.INT32,
    http2MaxRequests=w.INT32,
    maxRetries=w.INT32,
    maxConcurrentStreams=w.INT32,
)
DETECTION: Final = w.record(
    "",
    splitExternalLocalOriginErrors=w.FLAG,
    consecutiveLocalOriginFailures=w.UINT32,
    consecutiveGatewayErrors=w.UINT32,
    consecutive5xxErrors=w.UINT32,
    interval=DURATION,
    baseEjectionTime=DURATION,
    maxEjectionPercent=w.between(0, 100),
)
TLS: Final = w.record(
    "", mode=w.one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"), insecureSkipVerify=w.FLAG
)
POLICY: Final = w.record(
    "", connectionPool=w.record("", http=HTTP_POOL), outlierDetection=DETECTION, tls=TLS
)
DESTINATION_RULE: Final = w.record("host", host=w.TEXT, trafficPolicy=POLICY)

FILTER: Final = w.record("", name=w.STRING, subFilter=w.record("", name=w.STRING))
LISTENER: Final = w.record(
    "", portNumber=w.UINT32, name=w.STRING, filterChain=w.record("", name=w.STRING, filter=FILTER)
)
PATCH_MATCH: Final = w.record(
    "",
    context=w.one_of("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY", "WAYPOINT"),
    listener=LISTENER,
    cluster=w.record("", portNumber=w.UINT32, service=w.STRING, name=w.STRING),
) | w.at_most_one("listener", "cluster")
PATCH: Final = w.record(
    "",
    applyTo=w.one_of(
        *("LISTENER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER", "ROUTE_CONFIGURATION"),
        *(
            "VIRTUAL_HOST",
            "HTTP_ROUTE",
            "CLUSTER",
            "EXTENSION_CONFIG",
            "BOOTSTRAP",
            "LISTENER_FILTER",
        ),
    ),
    match=PATCH_MATCH,
    patch=w.record(
        "",
        operation=w.one_of(
            *("MERGE", "ADD", "REMOVE", "INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST", "REPLACE")
        ),
        value=w.FREE,
    ),
)
ENVOY_FILTER: Final = w.record(
    "",
    targetRefs=w.any_number(
        w.record("kind name", group=w.GROUP, kind=w.KIND, name=w.NAME, namespace=w.NAME), 16
    ),
    workloadSelector=w.record(""),
    configPatches=w.any_number(PATCH),
) | w.at_most_one("workloadSelector", "targetRefs")

SCHEMAS: Final = {
    ("networking.istio.io/v1alpha3", "EnvoyFilter"): w.resource(ENVOY_FILTER),
    ("networking.istio.io/v1", "DestinationRule"): w.resource(DESTINATION_RULE),
}
