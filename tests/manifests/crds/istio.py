"""Istio 1.29: networking.istio.io, as its chart's CustomResourceDefinitions have it (istio/istio, 1.29.2).

Whole kinds, except what an EnvoyFilter puts into Envoy's configuration: that is Envoy's to judge, and a test
starts one with it.
"""

from typing import Final

from tests.manifests.crds.words import (
    FLAG,
    FREE,
    GROUP,
    INT32,
    KIND,
    NAME,
    NUMBER,
    STRING,
    STRINGS,
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
VERSIONED_PORT: Final = record("", number=UINT32)

HTTP_POOL: Final = record(
    "",
    http1MaxPendingRequests=INT32,
    http2MaxRequests=INT32,
    maxRequestsPerConnection=INT32,
    maxRetries=INT32,
    idleTimeout=DURATION,
    h2UpgradePolicy=one_of("DEFAULT", "DO_NOT_UPGRADE", "UPGRADE"),
    useClientProtocol=FLAG,
    maxConcurrentStreams=INT32,
)
TCP_POOL: Final = record(
    "",
    maxConnections=INT32,
    connectTimeout=DURATION,
    tcpKeepalive=record("", probes=UINT32, time=DURATION, interval=DURATION),
    maxConnectionDuration=DURATION,
    idleTimeout=DURATION,
)
COOKIE: Final = record(
    "name",
    name=STRING,
    path=STRING,
    ttl=DURATION,
    attributes=any_number(record("name", name=STRING, value=STRING)),
)
HASH: Final = record(
    "",
    httpHeaderName=STRING,
    httpCookie=COOKIE,
    useSourceIp=FLAG,
    httpQueryParameterName=STRING,
    ringHash=record("", minimumRingSize=UINT32),
    maglev=record("", tableSize=UINT32),
    minimumRingSize=UINT32,
) | at_most_one("httpHeaderName", "httpCookie", "useSourceIp", "httpQueryParameterName")
LOCALITY: Final = record(
    "",
    distribute=any_number(record("", **{"from": STRING, "to": {"additionalProperties": UINT32}})),
    failover=any_number(record("", **{"from": STRING, "to": STRING})),
    failoverPriority=any_number(STRING),
    enabled=FLAG,
)
BALANCER: Final = record(
    "",
    simple=one_of("UNSPECIFIED", "LEAST_CONN", "RANDOM", "PASSTHROUGH", "ROUND_ROBIN", "LEAST_REQUEST"),
    consistentHash=HASH,
    localityLbSetting=LOCALITY,
    warmupDurationSecs=DURATION,
    warmup=record("duration", duration=DURATION, minimumPercent=NUMBER, aggression=NUMBER),
) | at_most_one("simple", "consistentHash")
DETECTION: Final = record(
    "",
    consecutiveErrors=INT32,
    splitExternalLocalOriginErrors=FLAG,
    consecutiveLocalOriginFailures=UINT32,
    consecutiveGatewayErrors=UINT32,
    consecutive5xxErrors=UINT32,
    interval=DURATION,
    baseEjectionTime=DURATION,
    maxEjectionPercent=between(0, 100),
    minHealthPercent=between(0, 100),
)
TLS: Final = record(
    "",
    mode=one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"),
    clientCertificate=STRING,
    privateKey=STRING,
    caCertificates=STRING,
    credentialName=STRING,
    subjectAltNames=any_number(STRING),
    sni=STRING,
    insecureSkipVerify=FLAG,
    caCrl=STRING,
)
PORT_POLICY: Final = {
    "loadBalancer": BALANCER,
    "connectionPool": record("", tcp=TCP_POOL, http=HTTP_POOL),
    "outlierDetection": DETECTION,
    "tls": TLS,
}
POLICY: Final = record(
    "",
    portLevelSettings=any_number(record("", port=VERSIONED_PORT, **PORT_POLICY), 4_096),
    tunnel=record("targetHost targetPort", protocol=STRING, targetHost=STRING, targetPort=UINT32),
    proxyProtocol=record("", version=one_of("V1", "V2")),
    retryBudget=record("", percent=NUMBER, minRetryConcurrency=UINT32),
    **PORT_POLICY,
)
DESTINATION_RULE: Final = record(
    "host",
    host=TEXT,
    trafficPolicy=POLICY,
    subsets=any_number(record("name", name=TEXT, labels=STRINGS, trafficPolicy=POLICY)),
    exportTo=any_number(STRING),
    workloadSelector=record("", matchLabels=STRINGS),
)

FILTER: Final = record("", name=STRING, subFilter=record("", name=STRING))
LISTENER: Final = record(
    "",
    portNumber=UINT32,
    portName=STRING,
    name=STRING,
    listenerFilter=STRING,
    filterChain=record(
        "",
        name=STRING,
        sni=STRING,
        transportProtocol=STRING,
        applicationProtocols=STRING,
        filter=FILTER,
        destinationPort=UINT32,
    ),
)
ROUTES: Final = record(
    "",
    portNumber=UINT32,
    portName=STRING,
    gateway=STRING,
    name=STRING,
    vhost=record(
        "",
        name=STRING,
        domainName=STRING,
        route=record("", name=STRING, action=one_of("ANY", "ROUTE", "REDIRECT", "DIRECT_RESPONSE")),
    ),
)
PATCH_MATCH: Final = record(
    "",
    context=one_of("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY", "WAYPOINT"),
    proxy=record("", proxyVersion=STRING, metadata=STRINGS),
    listener=LISTENER,
    routeConfiguration=ROUTES,
    cluster=record("", portNumber=UINT32, service=STRING, subset=STRING, name=STRING),
    waypoint=record("", portNumber=UINT32, filter=FILTER, route=record("", name=STRING)),
) | at_most_one("listener", "routeConfiguration", "cluster", "waypoint")
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
        filterClass=one_of("UNSPECIFIED", "AUTHN", "AUTHZ", "STATS"),
    ),
)
ENVOY_FILTER: Final = record(
    "",
    targetRefs=any_number(record("kind name", group=GROUP, kind=KIND, name=NAME, namespace=NAME), 16),
    workloadSelector=record("", labels=STRINGS),
    configPatches=any_number(PATCH),
    priority=INT32,
) | at_most_one("workloadSelector", "targetRefs")

SCHEMAS: Final = {
    ("networking.istio.io/v1alpha3", "EnvoyFilter"): resource(ENVOY_FILTER),
    ("networking.istio.io/v1", "DestinationRule"): resource(DESTINATION_RULE),
}
