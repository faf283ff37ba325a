"""Envoy Gateway 1.5: gateway.envoyproxy.io/v1alpha1, the four kinds that the overlays have.

Read in envoyproxy/gateway: its API reference of v1.5, and its types for limits. The rules between
fields are the API server's too.
"""

from typing import Final

from tests.manifests.crds import words as w
from tests.manifests.crds.gateway_api import DURATION, HEADER

QUANTITY: Final[w.Schema] = {"type": "string", "pattern": "^[1-9]+[0-9]*([EPTGMK]i|[EPTGMk])?$"}
ROUTES: Final = ("HTTPRoute", "GRPCRoute", "UDPRoute", "TCPRoute", "TLSRoute")


def targets(*kinds: str) -> dict[str, w.Schema]:
    """What a policy is attached to, of these kinds."""
    kind, group = w.one_of(*kinds), w.one_of("gateway.networking.k8s.io")
    target = w.record("group kind name", group=group, kind=kind, name=w.NAME)
    selector = w.record("kind", group=group, kind=kind, matchLabels=w.LABELS)
    return {
        "targetRef": target,
        "targetRefs": w.some(target, 16),
        "targetSelectors": w.some(selector),
    }


ATTACHED: Final = {
    "anyOf": [{"required": [name]} for name in ("targetRef", "targetRefs", "targetSelectors")]
} | w.at_most_one("targetRef", "targetRefs")

# --- How Envoy speaks to a backend, be it a route's, the picker or an access log's receiver.

REFERENCE: Final = {
    "group": w.GROUP,
    "kind": w.KIND,
    "name": w.NAME,
    "namespace": w.NAME,
    "port": w.PORT,
}
# The picker and an access log's receiver are Services, or Backends; a Service is named with its
# port.
SERVED: Final = REFERENCE | {
    "kind": w.one_of("Service", "Backend"),
    "group": w.one_of("", "gateway.envoyproxy.io"),
}
BACKENDS: Final = w.some(
    w.record("name", **SERVED)
    | {"if": {"properties": {"kind": {"const": "Service"}}}, "then": {"required": ["port"]}},
    16,
)
BREAKER: Final = w.record(
    "",
    maxConnections=w.UINT32,
    maxPendingRequests=w.UINT32,
    maxParallelRequests=w.UINT32,
    maxParallelRetries=w.UINT32,
)
BALANCER: Final = w.record(
    "type",
    type=w.one_of("ConsistentHash", "LeastRequest", "Random", "RoundRobin"),
    endpointOverride=w.record("extractFrom", extractFrom=w.some(w.record("", header=HEADER), 10)),
) | w.union("type", ConsistentHash="consistentHash")
TRIGGERS: Final = w.one_of(
    *("5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx"),
    *("refused-stream", "retriable-status-codes", "cancelled", "deadline-exceeded", "internal"),
    *("resource-exhausted", "unavailable"),
)
RETRY: Final = w.record(
    "", numRetries=w.between(0, 2**31 - 1), retryOn=w.record("", triggers=w.any_number(TRIGGERS))
)
HTTP2: Final = w.record(
    "",
    initialStreamWindowSize=QUANTITY,
    initialConnectionWindowSize=QUANTITY,
    maxConcurrentStreams=w.between(1, 2**31 - 1),
)
CLUSTER: Final = {
    "loadBalancer": BALANCER,
    "retry": RETRY,
    "circuitBreaker": BREAKER,
    "connection": w.record("", bufferLimit=QUANTITY),
    "http2": HTTP2,
}

# --- EnvoyExtensionPolicy

SIDE: Final = w.record(
    "", body=w.one_of("Streamed", "Buffered", "FullDuplexStreamed", "BufferedPartial")
)
_DUPLEX: Final = {"properties": {"body": {"const": "FullDuplexStreamed"}}, "required": ["body"]}
EXT_PROC: Final = w.record(
    "backendRefs",
    backendRefs=BACKENDS,
    backendSettings=w.record("", **CLUSTER),
    messageTimeout=DURATION,
    failOpen=w.FLAG,
    processingMode=w.record("", request=SIDE, allowModeOverride=w.FLAG),
) | {
    # Who sends bodies in full duplex cannot fail open.
    "if": {
        "properties": {
            "processingMode": {
                "anyOf": [
                    {"properties": {side: _DUPLEX}, "required": [side]}
                    for side in ("request", "response")
                ]
            }
        },
        "required": ["processingMode"],
    },
    "then": {"properties": {"failOpen": {"const": False}}},
}
EXTENSION_POLICY: Final = (
    w.record("", **targets("Gateway", *ROUTES), extProc=w.any_number(EXT_PROC, 16)) | ATTACHED
)

# --- BackendTrafficPolicy

BACKEND_POLICY: Final = w.record("", **targets("Gateway", *ROUTES), **CLUSTER) | ATTACHED

# --- ClientTrafficPolicy

HEADERS: Final = w.record(
    "",
    withUnderscoresAction=w.one_of("Allow", "RejectRequest", "DropHeader"),
    earlyRequestHeaders=w.record("", remove=w.any_number(HEADER, 64) | {"uniqueItems": True}),
)
PATH: Final = w.record(
    "",
    escapedSlashesAction=w.one_of(
        "KeepUnchanged", "RejectRequest", "UnescapeAndForward", "UnescapeAndRedirect"
    ),
)
CLIENT_POLICY: Final = (
    w.record(
        "",
        **targets("Gateway"),
        path=PATH,
        headers=HEADERS,
        connection=w.record("", bufferLimit=QUANTITY),
        http1=w.record("", http10=w.FREE),
        http2=HTTP2,
    )
    | ATTACHED
)

# --- EnvoyProxy

SINK: Final = w.record(
    "type",
    type=w.one_of("ALS", "File", "OpenTelemetry"),
    als=w.record(
        "type",
        backendRefs=BACKENDS,
        backendSettings=w.record("", **CLUSTER),
        logName=w.TEXT,
        type=w.one_of("HTTP", "TCP"),
        http=w.record("", responseHeaders=w.any_number(w.STRING)),
    )
    # Fields of HTTP are those of an HTTP log.
    | {"if": {"required": ["http"]}, "then": {"properties": {"type": {"const": "HTTP"}}}},
    file=w.record("path", path=w.TEXT),
) | w.union("type", ALS="als", File="file", OpenTelemetry="openTelemetry")
LOG: Final = w.record(
    "sinks",
    matches=w.any_number(w.STRING, 10),
    sinks=w.some(SINK, 50),
    type=w.one_of("Listener", "Route"),
)
CONTAINER: Final = w.record("", image=w.STRING, imageRepository=w.STRING) | w.at_most_one(
    "image", "imageRepository"
)
PROVIDER: Final = w.record(
    "type",
    type=w.one_of("Kubernetes", "Custom"),
    kubernetes=w.record("", envoyDeployment=w.record("", replicas=w.INT32, container=CONTAINER)),
)
PROXY: Final = w.record(
    "",
    provider=PROVIDER,
    telemetry=w.record("", accessLog=w.record("", disable=w.FLAG, settings=w.some(LOG, 50))),
)

SCHEMAS: Final = {
    ("gateway.envoyproxy.io/v1alpha1", kind): w.resource(spec)
    for kind, spec in {
        "EnvoyProxy": PROXY,
        "EnvoyExtensionPolicy": EXTENSION_POLICY,
        "BackendTrafficPolicy": BACKEND_POLICY,
        "ClientTrafficPolicy": CLIENT_POLICY,
    }.items()
}
