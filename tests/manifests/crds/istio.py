"""Istio 1.29: networking.istio.io, as its chart's CustomResourceDefinitions have it (istio/istio, 1.29.2).

What an EnvoyFilter puts into Envoy's configuration is Envoy's to judge: a test starts one with it.
"""

from typing import Final

from tests.manifests.crds.words import (
    FLAG,
    FREE,
    GROUP,
    INT32,
    KIND,
    NAME,
    STRING,
    TEXT,
    UINT32,
    Schema,
    any_number,
    at_most_one,
    between,
    one_of,
    record,
    resource,
)

# A protobuf Duration of at least a millisecond, as Go writes it.
DURATION: Final[Schema] = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$"}

HTTP_POOL: Final = record(
    "", http1MaxPendingRequests=INT32, http2MaxRequests=INT32, maxRetries=INT32, maxConcurrentStreams=INT32
)
DETECTION: Final = record(
    "",
    splitExternalLocalOriginErrors=FLAG,
    consecutiveLocalOriginFailures=UINT32,
    consecutiveGatewayErrors=UINT32,
    consecutive5xxErrors=UINT32,
    interval=DURATION,
    baseEjectionTime=DURATION,
    maxEjectionPercent=between(0, 100),
)
TLS: Final = record("", mode=one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"), insecureSkipVerify=FLAG)
POLICY: Final = record("", connectionPool=record("", http=HTTP_POOL), outlierDetection=DETECTION, tls=TLS)
DESTINATION_RULE: Final = record("host", host=TEXT, trafficPolicy=POLICY)

FILTER: Final = record("", name=STRING, subFilter=record("", name=STRING))
LISTENER: Final = record(
    "", portNumber=UINT32, name=STRING, filterChain=record("", name=STRING, filter=FILTER)
)
PATCH_MATCH: Final = record(
    "",
    context=one_of("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY", "WAYPOINT"),
    listener=LISTENER,
    cluster=record("", portNumber=UINT32, service=STRING, name=STRING),
) | at_most_one("listener", "cluster")
PATCH: Final = record(
    "",
    applyTo=one_of(
        *("LISTENER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER", "ROUTE_CONFIGURATION"),
        *("VIRTUAL_HOST", "HTTP_ROUTE", "CLUSTER", "EXTENSION_CONFIG", "BOOTSTRAP", "LISTENER_FILTER"),
    ),
    match=PATCH_MATCH,
    patch=record(
        "",
        operation=one_of(
            *("MERGE", "ADD", "REMOVE", "INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST", "REPLACE")
        ),
        value=FREE,
    ),
)
ENVOY_FILTER: Final = record(
    "",
    targetRefs=any_number(record("kind name", group=GROUP, kind=KIND, name=NAME, namespace=NAME), 16),
    workloadSelector=record(""),
    configPatches=any_number(PATCH),
) | at_most_one("workloadSelector", "targetRefs")

SCHEMAS: Final = {
    ("networking.istio.io/v1alpha3", "EnvoyFilter"): resource(ENVOY_FILTER),
    ("networking.istio.io/v1", "DestinationRule"): resource(DESTINATION_RULE),
}
