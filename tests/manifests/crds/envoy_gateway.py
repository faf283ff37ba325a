"""Envoy Gateway 1.5: gateway.envoyproxy.io/v1alpha1, the four kinds that the overlays have.

Read in envoyproxy/gateway: its API reference of v1.5, and its types for limits. Of what no manifest of ours
has (rate limits, faults, Wasm, Lua, tracing, TLS, overrides of answers) the field is here, its tree is not;
nor are Kubernetes' own types inside EnvoyProxy. The rules between fields are the API server's too.
"""

from typing import Final

from tests.manifests.crds.gateway_api import DURATION, HEADER
from tests.manifests.crds.words import (
    FLAG,
    FREE,
    GROUP,
    INT32,
    KIND,
    LABELS,
    NAME,
    PORT,
    STRING,
    STRINGS,
    TEXT,
    UINT32,
    Schema,
    any_number,
    at_most_one,
    between,
    exactly_one,
    one_of,
    record,
    resource,
    some,
    union,
)

QUANTITY: Final[Schema] = {"type": "string", "pattern": "^[1-9]+[0-9]*([EPTGMK]i|[EPTGMk])?$"}
STATUS: Final = between(100, 599)
ROUTES: Final = ("HTTPRoute", "GRPCRoute", "UDPRoute", "TCPRoute", "TLSRoute")


def targets(*kinds: str) -> dict[str, Schema]:
    """What a policy is attached to, of these kinds."""
    kind, group = one_of(*kinds), one_of("gateway.networking.k8s.io")
    target = record("group kind name", group=group, kind=kind, name=NAME, sectionName=NAME)
    selector = record("kind", group=group, kind=kind, matchLabels=LABELS, matchExpressions=any_number(FREE))
    return {"targetRef": target, "targetRefs": some(target, 16), "targetSelectors": some(selector)}


ATTACHED: Final = {
    "anyOf": [{"required": [name]} for name in ("targetRef", "targetRefs", "targetSelectors")],
} | at_most_one("targetRef", "targetRefs")

# --- How Envoy speaks to a backend, be it a route's, the picker or an access log's receiver.

REFERENCE: Final = {"group": GROUP, "kind": KIND, "name": NAME, "namespace": NAME, "port": PORT}
# The picker and an access log's receiver are Services, or Backends; a Service is named with its port.
SERVED: Final = REFERENCE | {
    "kind": one_of("Service", "Backend"),
    "group": one_of("", "gateway.envoyproxy.io"),
    "fallback": FLAG,
}
BACKENDS: Final = some(
    record("name", **SERVED)
    | {"if": {"properties": {"kind": {"const": "Service"}}}, "then": {"required": ["port"]}},
    16,
)
BREAKER: Final = record(
    "",
    maxConnections=UINT32,
    maxPendingRequests=UINT32,
    maxParallelRequests=UINT32,
    maxParallelRetries=UINT32,
    maxRequestsPerConnection=UINT32,
    perEndpoint=record("", maxConnections=UINT32),
)
HASH: Final = record(
    "type",
    type=one_of("SourceIP", "Header", "Cookie"),
    header=record("name", name=STRING),
    cookie=record("name", name=STRING, ttl=DURATION, attributes=STRINGS),
    tableSize=between(2, 5_000_011),
) | union("type", Header="header", Cookie="cookie")
BALANCER: Final = record(
    "type",
    type=one_of("ConsistentHash", "LeastRequest", "Random", "RoundRobin"),
    consistentHash=HASH,
    endpointOverride=record("extractFrom", extractFrom=some(record("", header=HEADER), 10)),
    slowStart=record("window", window=DURATION),
    zoneAware=record("", preferLocal=record("", force=FREE, minEndpointsThreshold=between(0, 2**63 - 1))),
) | union("type", ConsistentHash="consistentHash")
TRIGGERS: Final = one_of(
    *("5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx"),
    *("refused-stream", "retriable-status-codes", "cancelled", "deadline-exceeded", "internal"),
    *("resource-exhausted", "unavailable"),
)
RETRY: Final = record(
    "",
    numRetries=between(0, 2**31 - 1),
    numAttemptsPerPriority=INT32,
    retryOn=record("", triggers=any_number(TRIGGERS), httpStatusCodes=any_number(STATUS)),
    perRetry=record("", timeout=DURATION, backOff=record("", baseInterval=DURATION, maxInterval=DURATION)),
)
KEEPALIVE: Final = record("", probes=UINT32, idleTime=DURATION, interval=DURATION)
HTTP2: Final = record(
    "",
    initialStreamWindowSize=QUANTITY,
    initialConnectionWindowSize=QUANTITY,
    maxConcurrentStreams=between(1, 2**31 - 1),
    onInvalidMessage=one_of("TerminateConnection", "TerminateStream"),
)
PASSIVE: Final = record(
    "",
    splitExternalLocalOriginErrors=FLAG,
    interval=DURATION,
    consecutiveLocalOriginFailures=UINT32,
    consecutiveGatewayErrors=UINT32,
    consecutive5XxErrors=UINT32,
    baseEjectionTime=DURATION,
    maxEjectionPercent=INT32,
)
CLUSTER: Final = {
    "loadBalancer": BALANCER,
    "retry": RETRY,
    "proxyProtocol": record("version", version=one_of("V1", "V2")),
    "tcpKeepalive": KEEPALIVE,
    "healthCheck": record("", active=FREE, passive=PASSIVE, panicThreshold=between(0, 100)),
    "circuitBreaker": BREAKER,
    "timeout": record(
        "",
        tcp=record("", connectTimeout=DURATION),
        http=record(
            "", connectionIdleTimeout=DURATION, maxConnectionDuration=DURATION, requestTimeout=DURATION
        ),
    ),
    "connection": record("", bufferLimit=QUANTITY),
    "dns": record(
        "",
        dnsRefreshRate=DURATION,
        respectDnsTtl=FLAG,
        lookupFamily=one_of("IPv4", "IPv6", "IPv4Preferred", "IPv6Preferred", "IPv4AndIPv6"),
    ),
    "http2": HTTP2,
}

# --- EnvoyExtensionPolicy

ATTRIBUTE: Final[Schema] = {
    "type": "string",
    "pattern": r"^((connection|source|destination|request|response|upstream)\.|xds\.route_)[a-z_1-9]*$",
}
SIDE: Final = record(
    "",
    body=one_of("Streamed", "Buffered", "FullDuplexStreamed", "BufferedPartial"),
    attributes=any_number(ATTRIBUTE),
)
_DUPLEX: Final = {"properties": {"body": {"const": "FullDuplexStreamed"}}, "required": ["body"]}
EXT_PROC: Final = record(
    "backendRefs",
    backendRefs=BACKENDS,
    backendSettings=record("", **CLUSTER),
    messageTimeout=DURATION,
    failOpen=FLAG,
    processingMode=record("", request=SIDE, response=SIDE, allowModeOverride=FLAG),
    metadata=record(
        "",
        accessibleNamespaces=any_number(STRING),
        writableNamespaces=any_number({"type": "string", "not": {"pattern": r"^envoy\.filters\.http"}}, 8),
    ),
) | {
    # Who sends bodies in full duplex cannot fail open.
    "if": {
        "properties": {
            "processingMode": {
                "anyOf": [
                    {"properties": {side: _DUPLEX}, "required": [side]} for side in ("request", "response")
                ]
            }
        },
        "required": ["processingMode"],
    },
    "then": {"properties": {"failOpen": {"const": False}}},
}
EXTENSION_POLICY: Final = (
    record(
        "",
        **targets("Gateway", *ROUTES),
        wasm=any_number(FREE, 16),
        extProc=any_number(EXT_PROC, 16),
        lua=any_number(FREE, 16),
    )
    | ATTACHED
)

# --- BackendTrafficPolicy

BACKEND_POLICY: Final = (
    record(
        "",
        **targets("Gateway", *ROUTES),
        **CLUSTER,
        mergeType=one_of("StrategicMerge", "JSONMerge"),
        rateLimit=FREE,
        faultInjection=FREE,
        useClientProtocol=FLAG,
        compression=any_number(FREE),
        responseOverride=any_number(FREE),
        httpUpgrade=any_number(FREE),
        telemetry=record("", tracing=FREE),
    )
    | ATTACHED
)

# --- ClientTrafficPolicy

HEADERS: Final = record(
    "",
    enableEnvoyHeaders=FLAG,
    disableRateLimitHeaders=FLAG,
    xForwardedClientCert=FREE,
    withUnderscoresAction=one_of("Allow", "RejectRequest", "DropHeader"),
    preserveXRequestID=FLAG,
    requestID=one_of("PreserveOrGenerate", "Preserve", "Generate", "Disable"),
    earlyRequestHeaders=record(
        "",
        set=any_number(record("name value", name=HEADER, value=TEXT), 64),
        add=any_number(record("name value", name=HEADER, value=TEXT), 64),
        remove=any_number(HEADER, 64) | {"uniqueItems": True},
    ),
) | at_most_one("preserveXRequestID", "requestID")
PATH: Final = record(
    "",
    escapedSlashesAction=one_of(
        "KeepUnchanged", "RejectRequest", "UnescapeAndForward", "UnescapeAndRedirect"
    ),
    disableMergeSlashes=FLAG,
)
CLIENT_POLICY: Final = (
    record(
        "",
        **targets("Gateway"),
        tcpKeepalive=KEEPALIVE,
        enableProxyProtocol=FLAG,
        proxyProtocol=record("", optional=FLAG),
        clientIPDetection=FREE,
        tls=FREE,
        path=PATH,
        headers=HEADERS,
        timeout=record(
            "",
            tcp=record("", idleTimeout=DURATION),
            http=record(
                "", requestReceivedTimeout=DURATION, idleTimeout=DURATION, streamIdleTimeout=DURATION
            ),
        ),
        connection=record(
            "",
            connectionLimit=record("value", value=between(1, 2**63 - 1), closeDelay=DURATION),
            bufferLimit=QUANTITY,
            maxAcceptPerSocketEvent=UINT32,
        ),
        http1=record(
            "", enableTrailers=FLAG, preserveHeaderCase=FLAG, http10=record("", useDefaultHost=FLAG)
        ),
        http2=HTTP2,
        http3=FREE,
        healthCheck=record("path", path=TEXT),
    )
    | ATTACHED
)

# --- EnvoyProxy

RECEIVER: Final = {"backendRef": record("name", **REFERENCE), "backendRefs": BACKENDS}
SINK: Final = record(
    "type",
    type=one_of("ALS", "File", "OpenTelemetry"),
    als=record(
        "type",
        **RECEIVER,
        backendSettings=record("", **CLUSTER),
        logName=TEXT,
        type=one_of("HTTP", "TCP"),
        http=record(
            "",
            requestHeaders=any_number(STRING),
            responseHeaders=any_number(STRING),
            responseTrailers=any_number(STRING),
        ),
    )
    # Fields of HTTP are those of an HTTP log.
    | {"if": {"required": ["http"]}, "then": {"properties": {"type": {"const": "HTTP"}}}}
    | exactly_one("backendRef", "backendRefs"),
    file=record("path", path=TEXT),
    openTelemetry=record(
        "",
        **RECEIVER,
        backendSettings=record("", **CLUSTER),
        host=STRING,
        port=between(0, 65_535),
        resources=STRINGS,
    ),
) | union("type", ALS="als", File="file", OpenTelemetry="openTelemetry")
LOG: Final = record(
    "sinks",
    format=record("type", type=one_of("Text", "JSON"), text=STRING, json=STRINGS)
    | union("type", Text="text", JSON="json"),
    matches=any_number(STRING, 10),
    sinks=some(SINK, 50),
    type=one_of("Listener", "Route"),
)
MERGED: Final = record("value", type=one_of("StrategicMerge", "JSONMerge"), value={})
CONTAINER: Final = record(
    "",
    env=any_number(FREE),
    resources=FREE,
    securityContext=FREE,
    image=STRING,
    imageRepository=STRING,
    volumeMounts=any_number(FREE),
) | at_most_one("image", "imageRepository")
POD: Final = record(
    "",
    annotations=STRINGS,
    labels=LABELS,
    securityContext=FREE,
    affinity=FREE,
    tolerations=any_number(FREE),
    volumes=any_number(FREE),
    imagePullSecrets=any_number(FREE),
    nodeSelector=STRINGS,
    topologySpreadConstraints=any_number(FREE),
)
WORKLOAD: Final = {"patch": MERGED, "strategy": FREE, "pod": POD, "container": CONTAINER, "name": STRING}
PROVIDER: Final = record(
    "type",
    type=one_of("Kubernetes", "Custom"),
    kubernetes=record(
        "",
        envoyDeployment=record("", replicas=INT32, initContainers=any_number(FREE), **WORKLOAD),
        envoyDaemonSet=record("", **WORKLOAD),
        envoyService=FREE,
        envoyHpa=FREE,
        useListenerPortAsContainerPort=FLAG,
        envoyPDB=FREE,
        envoyServiceAccount=record("", name=STRING),
    )
    # A Deployment or a DaemonSet.
    | at_most_one("envoyDeployment", "envoyDaemonSet"),
)
PROXY: Final = record(
    "",
    provider=PROVIDER,
    logging=record("", level=STRINGS),
    telemetry=record(
        "",
        accessLog=record("", disable=FLAG, settings=some(LOG, 50)),
        tracing=FREE,
        metrics=FREE,
    ),
    bootstrap=record(
        "", type=one_of("Merge", "Replace", "JSONPatch"), value=STRING, jsonPatches=any_number(FREE)
    ),
    concurrency=INT32,
    routingType=one_of("Service", "Endpoint"),
    extraArgs=any_number(STRING),
    mergeGateways=FLAG,
    shutdown=record("", drainTimeout=DURATION, minDrainDuration=DURATION),
    filterOrder=any_number(FREE),
    backendTLS=FREE,
    ipFamily=one_of("IPv4", "IPv6", "DualStack"),
    preserveRouteOrder=FLAG,
    luaValidation=one_of("Strict", "Syntax", "Disabled"),
)

SCHEMAS: Final = {
    ("gateway.envoyproxy.io/v1alpha1", kind): resource(spec)
    for kind, spec in {
        "EnvoyProxy": PROXY,
        "EnvoyExtensionPolicy": EXTENSION_POLICY,
        "BackendTrafficPolicy": BACKEND_POLICY,
        "ClientTrafficPolicy": CLIENT_POLICY,
    }.items()
}
