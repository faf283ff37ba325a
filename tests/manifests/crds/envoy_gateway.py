"""Envoy Gateway 1.5: gateway.envoyproxy.io/v1alpha1, the four kinds that the overlays have.

Read in envoyproxy/gateway: its API reference of v1.5, and its types for limits. The rules between fields are
the API server's too.
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
    TEXT,
    UINT32,
    Schema,
    any_number,
    at_most_one,
    between,
    one_of,
    record,
    resource,
    some,
    union,
)

QUANTITY: Final[Schema] = {"type": "string", "pattern": "^[1-9]+[0-9]*([EPTGMK]i|[EPTGMk])?$"}
ROUTES: Final = ("HTTPRoute", "GRPCRoute", "UDPRoute", "TCPRoute", "TLSRoute")


def targets(*kinds: str) -> dict[str, Schema]:
    """What a policy is attached to, of these kinds."""
    kind, group = one_of(*kinds), one_of("gateway.networking.k8s.io")
    target = record("group kind name", group=group, kind=kind, name=NAME)
    selector = record("kind", group=group, kind=kind, matchLabels=LABELS)
    return {"targetRef": target, "targetRefs": some(target, 16), "targetSelectors": some(selector)}


ATTACHED: Final = {
    "anyOf": [{"required": [name]} for name in ("targetRef", "targetRefs", "targetSelectors")]
} | at_most_one("targetRef", "targetRefs")

# --- How Envoy speaks to a backend, be it a route's, the picker or an access log's receiver.

REFERENCE: Final = {"group": GROUP, "kind": KIND, "name": NAME, "namespace": NAME, "port": PORT}
# The picker and an access log's receiver are Services, or Backends; a Service is named with its port.
SERVED: Final = REFERENCE | {
    "kind": one_of("Service", "Backend"),
    "group": one_of("", "gateway.envoyproxy.io"),
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
)
BALANCER: Final = record(
    "type",
    type=one_of("ConsistentHash", "LeastRequest", "Random", "RoundRobin"),
    endpointOverride=record("extractFrom", extractFrom=some(record("", header=HEADER), 10)),
) | union("type", ConsistentHash="consistentHash")
TRIGGERS: Final = one_of(
    *("5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx"),
    *("refused-stream", "retriable-status-codes", "cancelled", "deadline-exceeded", "internal"),
    *("resource-exhausted", "unavailable"),
)
RETRY: Final = record("", numRetries=between(0, 2**31 - 1), retryOn=record("", triggers=any_number(TRIGGERS)))
HTTP2: Final = record(
    "",
    initialStreamWindowSize=QUANTITY,
    initialConnectionWindowSize=QUANTITY,
    maxConcurrentStreams=between(1, 2**31 - 1),
)
CLUSTER: Final = {
    "loadBalancer": BALANCER,
    "retry": RETRY,
    "circuitBreaker": BREAKER,
    "connection": record("", bufferLimit=QUANTITY),
    "http2": HTTP2,
}

# --- EnvoyExtensionPolicy

SIDE: Final = record("", body=one_of("Streamed", "Buffered", "FullDuplexStreamed", "BufferedPartial"))
_DUPLEX: Final = {"properties": {"body": {"const": "FullDuplexStreamed"}}, "required": ["body"]}
EXT_PROC: Final = record(
    "backendRefs",
    backendRefs=BACKENDS,
    backendSettings=record("", **CLUSTER),
    messageTimeout=DURATION,
    failOpen=FLAG,
    processingMode=record("", request=SIDE, allowModeOverride=FLAG),
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
    record("", **targets("Gateway", *ROUTES), extProc=any_number(EXT_PROC, 16)) | ATTACHED
)

# --- BackendTrafficPolicy

BACKEND_POLICY: Final = record("", **targets("Gateway", *ROUTES), **CLUSTER) | ATTACHED

# --- ClientTrafficPolicy

HEADERS: Final = record(
    "",
    withUnderscoresAction=one_of("Allow", "RejectRequest", "DropHeader"),
    earlyRequestHeaders=record("", remove=any_number(HEADER, 64) | {"uniqueItems": True}),
)
PATH: Final = record(
    "",
    escapedSlashesAction=one_of(
        "KeepUnchanged", "RejectRequest", "UnescapeAndForward", "UnescapeAndRedirect"
    ),
)
CLIENT_POLICY: Final = (
    record(
        "",
        **targets("Gateway"),
        path=PATH,
        headers=HEADERS,
        connection=record("", bufferLimit=QUANTITY),
        http1=record("", http10=FREE),
        http2=HTTP2,
    )
    | ATTACHED
)

# --- EnvoyProxy

SINK: Final = record(
    "type",
    type=one_of("ALS", "File", "OpenTelemetry"),
    als=record(
        "type",
        backendRefs=BACKENDS,
        backendSettings=record("", **CLUSTER),
        logName=TEXT,
        type=one_of("HTTP", "TCP"),
        http=record("", responseHeaders=any_number(STRING)),
    )
    # Fields of HTTP are those of an HTTP log.
    | {"if": {"required": ["http"]}, "then": {"properties": {"type": {"const": "HTTP"}}}},
    file=record("path", path=TEXT),
) | union("type", ALS="als", File="file", OpenTelemetry="openTelemetry")
LOG: Final = record(
    "sinks", matches=any_number(STRING, 10), sinks=some(SINK, 50), type=one_of("Listener", "Route")
)
CONTAINER: Final = record("", image=STRING, imageRepository=STRING) | at_most_one("image", "imageRepository")
PROVIDER: Final = record(
    "type",
    type=one_of("Kubernetes", "Custom"),
    kubernetes=record("", envoyDeployment=record("", replicas=INT32, container=CONTAINER)),
)
PROXY: Final = record(
    "", provider=PROVIDER, telemetry=record("", accessLog=record("", disable=FLAG, settings=some(LOG, 50)))
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
