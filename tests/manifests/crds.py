"""JSON schemas of the custom resources that the manifests use, as far as they use them.

Written after the projects' own: Gateway API 1.4, Envoy Gateway 1.5, Istio 1.28, Prometheus Operator 0.86, and
these, whose published CustomResourceDefinitions were read for it:

| group | repository | release |
| --- | --- | --- |
| inference.networking.k8s.io/v1, …x-k8s.io/v1alpha2 | kubernetes-sigs/gateway-api-inference-extension | 1.0 |
| llm-d.ai/v1alpha2 | llm-d/llm-d-router | of 2026 |
| networking.gke.io/v1 | GoogleCloudPlatform/gke-gateway-api | of 2025, it has no releases |
| gateway.nginx.org/v1alpha1 | nginx/nginx-gateway-fabric | 2.4, the first with ProxySettingsPolicy |
| networking.istio.io/v1, outlier detection | istio/istio | 1.28 |

A field that is not here is refused, so that a misspelt one is.
"""

from typing import Any, Final

Schema = dict[str, Any]

NAME: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
GROUP: Final[Schema] = {"type": "string", "pattern": r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
KIND: Final[Schema] = {"type": "string", "pattern": "^[A-Z][A-Za-z0-9]*$"}
TEXT: Final[Schema] = {"type": "string", "minLength": 1}
PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65_535}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 4_294_967_295}
FLAG: Final[Schema] = {"type": "boolean"}
DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
QUANTITY: Final[Schema] = {"type": "string", "pattern": "^[1-9]+[0-9]*([EPTGMK]i|[EPTGMk])?$"}
LABELS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
FREE: Final[Schema] = {"type": "object"}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def some(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def record(required: str = "", **fields: Schema) -> Schema:
    """An object with these fields and no others; `required` names some of them."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def resource(spec: Schema) -> Schema:
    metadata = record("name", name=NAME, namespace=NAME, labels=LABELS, annotations=LABELS)
    return record("apiVersion kind metadata spec", apiVersion=TEXT, kind=KIND, metadata=metadata, spec=spec)


TARGETS: Final = some(record("group kind name", group=GROUP, kind=KIND, name=NAME, sectionName=NAME))
SELECTOR: Final = record(matchLabels=LABELS)
SCRAPES: Final = some(record("port", port=NAME, path=TEXT, interval=DURATION))
BREAKER: Final = record(
    maxConnections=COUNT, maxPendingRequests=COUNT, maxParallelRequests=COUNT, maxParallelRetries=COUNT
)

GATEWAY_CLASS: Final = record("controllerName", controllerName=TEXT)
GATEWAY: Final = record(
    "gatewayClassName listeners",
    gatewayClassName=NAME,
    infrastructure=record(parametersRef=record("group kind name", group=GROUP, kind=KIND, name=NAME)),
    listeners=some(
        record("name protocol port", name=NAME, protocol=one_of("HTTP", "HTTPS", "TLS", "TCP"), port=PORT)
    ),
)
HTTP_ROUTE: Final = record(
    "parentRefs rules",
    parentRefs=some(record("name", name=NAME, namespace=NAME)),
    rules=some(
        record(
            matches=some(record(path=record("type value", type=one_of("PathPrefix", "Exact"), value=TEXT))),
            backendRefs=some(record("name", group=GROUP, kind=KIND, name=NAME, port=PORT)),
            timeouts=record(request=DURATION, backendRequest=DURATION),
        )
    ),
)
INFERENCE_POOL: Final = record(
    "selector targetPorts endpointPickerRef",
    selector=record("matchLabels", matchLabels=LABELS),
    targetPorts=some(record("number", number=PORT)) | {"maxItems": 8, "uniqueItems": True},
    appProtocol=one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=record(
        "name port",
        group=GROUP,
        kind=KIND,
        name=NAME,
        port=record("number", number=PORT),
        failureMode=one_of("FailOpen", "FailClose"),
    ),
)
ACCESS_LOG_SINK: Final = record(
    "type",
    type=one_of("File", "ALS"),
    file=record("path", path=TEXT),
    als=record(
        "type backendRefs",
        type=one_of("HTTP", "TCP"),
        logName=TEXT,
        backendRefs=some(record("name port", name=NAME, namespace=NAME, port=PORT)),
        http=record(requestHeaders=some(TEXT), responseHeaders=some(TEXT), responseTrailers=some(TEXT)),
    ),
)
ENVOY_PROXY: Final = record(
    "provider",
    telemetry=record(accessLog=record(settings=some(record(sinks=some(ACCESS_LOG_SINK))))),
    provider=record(
        "type",
        type=one_of("Kubernetes"),
        kubernetes=record(envoyDeployment=record(replicas=COUNT, container=record(image=TEXT))),
    ),
)
ENVOY_EXTENSION_POLICY: Final = record(
    "targetRefs extProc",
    targetRefs=TARGETS,
    extProc=some(
        record(
            "backendRefs",
            backendRefs=some(record("name port", name=NAME, port=PORT)),
            processingMode=record(
                request=record(body=one_of("Streamed", "Buffered", "BufferedPartial", "FullDuplexStreamed")),
                response=record(),
                allowModeOverride=FLAG,
            ),
            messageTimeout=DURATION,
            failOpen=FLAG,
            backendSettings=record(circuitBreaker=BREAKER),
        )
    ),
)
BACKEND_TRAFFIC_POLICY: Final = record(
    "targetRefs",
    targetRefs=TARGETS,
    loadBalancer=record(
        "type",
        type=one_of("ConsistentHash", "LeastRequest", "Random", "RoundRobin"),
        endpointOverride=record("extractFrom", extractFrom=some(record(header=TEXT))),
    ),
    circuitBreaker=BREAKER,
    retry=record(
        numRetries=COUNT,
        retryOn=record(
            triggers=some(one_of("5xx", "gateway-error", "reset", "connect-failure", "refused-stream"))
        ),
    ),
)
CLIENT_TRAFFIC_POLICY: Final = record(
    "targetRefs",
    targetRefs=TARGETS,
    headers=record(
        earlyRequestHeaders=record(remove=some(TEXT)),
        withUnderscoresAction=one_of("Allow", "RejectRequest", "DropHeader"),
    ),
    path=record(
        escapedSlashesAction=one_of(
            "KeepUnchanged", "RejectRequest", "UnescapeAndForward", "UnescapeAndRedirect"
        ),
        disableMergeSlashes=FLAG,
    ),
    http1=record(http10=record()),
    http2=record(
        maxConcurrentStreams=COUNT, initialStreamWindowSize=QUANTITY, initialConnectionWindowSize=QUANTITY
    ),
    connection=record(bufferLimit=QUANTITY),
)
ENVOY_FILTER: Final = record(
    "configPatches",
    targetRefs=TARGETS,
    configPatches=some(
        record(
            "applyTo match patch",
            applyTo=one_of("LISTENER", "NETWORK_FILTER", "HTTP_FILTER", "CLUSTER"),
            match=record(
                context=one_of("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"),
                listener=record(
                    filterChain=record(filter=record("name", name=TEXT, subFilter=record("name", name=TEXT)))
                ),
                cluster=record(service=TEXT, portNumber=PORT),
            ),
            patch=record("operation", operation=one_of("ADD", "MERGE", "INSERT_BEFORE"), value=FREE),
        )
    ),
)
DESTINATION_RULE: Final = record(
    "host",
    host=TEXT,
    trafficPolicy=record(
        tls=record(
            "mode", mode=one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"), insecureSkipVerify=FLAG
        ),
        outlierDetection=record(
            splitExternalLocalOriginErrors=FLAG,
            consecutiveLocalOriginFailures=COUNT,
            consecutiveGatewayErrors=COUNT,
            consecutive5xxErrors=COUNT,
            interval=DURATION,
            baseEjectionTime=DURATION,
            maxEjectionPercent={"type": "integer", "minimum": 0, "maximum": 100},
            minHealthPercent={"type": "integer", "minimum": 0, "maximum": 100},
        ),
        connectionPool=record(
            http=record(http1MaxPendingRequests=COUNT, http2MaxRequests=COUNT, maxRetries=COUNT)
        ),
    ),
)

TARGET: Final = record("group kind name", group=GROUP, kind=KIND, name=NAME)
INT32: Final[Schema] = {"type": "integer", "minimum": -2_147_483_648, "maximum": 2_147_483_647}
INFERENCE_OBJECTIVE: Final = record(
    "poolRef", priority=INT32, poolRef=record("name", group=GROUP, kind=KIND, name=NAME)
)
NGINX_SIZE: Final[Schema] = {"type": "string", "pattern": r"^\d{1,4}(k|m|g)?$"}
CLIENT_SETTINGS_POLICY: Final = record("targetRef", targetRef=TARGET, body=record(maxSize=NGINX_SIZE))
PROXY_SETTINGS_POLICY: Final = record(
    "targetRefs",
    targetRefs=some(
        record(
            "group kind name",
            group=one_of("gateway.networking.k8s.io"),
            kind=one_of("Gateway", "HTTPRoute", "GRPCRoute"),
            name=NAME,
        )
    )
    | {"maxItems": 16},
    buffering=record(
        disable=FLAG,
        bufferSize=NGINX_SIZE,
        buffers=record("number size", number=COUNT, size=NGINX_SIZE),
        busyBuffersSize=NGINX_SIZE,
    ),
)


def _between(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


# A union: `type`, and the one of its name.
GKE_HEALTH_CHECK: Final = record(
    "type",
    type=one_of("HTTP", "HTTPS", "HTTP2", "GRPC", "TCP"),
    httpHealthCheck=record(
        portSpecification=one_of("USE_FIXED_PORT", "USE_NAMED_PORT", "USE_SERVING_PORT"),
        port=PORT,
        requestPath={"type": "string", "maxLength": 2_048, "pattern": r"/[A-Za-z0-9/\-._~%!?$&'()*+,;=:]*$"},
    ),
    grpcHealthCheck=record(port=PORT, grpcServiceName={"type": "string", "maxLength": 1_024}),
) | {"minProperties": 2, "maxProperties": 2}
HEALTH_CHECK_POLICY: Final = record(
    "targetRef",
    targetRef=TARGET,
    default=record(
        checkIntervalSec=_between(1, 300),
        timeoutSec=_between(1, 300),
        healthyThreshold=_between(1, 10),
        unhealthyThreshold=_between(1, 10),
        config=GKE_HEALTH_CHECK,
        logConfig=record(enabled=FLAG),
    ),
)
GCP_BACKEND_POLICY: Final = record(
    "targetRef",
    targetRef=TARGET,
    default=record(
        timeoutSec=_between(1, 2_147_483_647),
        connectionDraining=record(drainingTimeoutSec=_between(0, 3_600)),
        maxRatePerEndpoint=_between(1, 1_000_000_000),
        logging=record(enabled=FLAG, sampleRate=_between(0, 1_000_000)),
    ),
)

SCHEMAS: Final = {
    ("gateway.networking.k8s.io/v1", "GatewayClass"): resource(GATEWAY_CLASS),
    ("gateway.networking.k8s.io/v1", "Gateway"): resource(GATEWAY),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): resource(HTTP_ROUTE),
    ("inference.networking.k8s.io/v1", "InferencePool"): resource(INFERENCE_POOL),
    ("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective"): resource(INFERENCE_OBJECTIVE),
    ("llm-d.ai/v1alpha2", "InferenceObjective"): resource(INFERENCE_OBJECTIVE),
    ("gateway.envoyproxy.io/v1alpha1", "EnvoyProxy"): resource(ENVOY_PROXY),
    ("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy"): resource(ENVOY_EXTENSION_POLICY),
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): resource(BACKEND_TRAFFIC_POLICY),
    ("gateway.envoyproxy.io/v1alpha1", "ClientTrafficPolicy"): resource(CLIENT_TRAFFIC_POLICY),
    ("gateway.nginx.org/v1alpha1", "ClientSettingsPolicy"): resource(CLIENT_SETTINGS_POLICY),
    ("gateway.nginx.org/v1alpha1", "ProxySettingsPolicy"): resource(PROXY_SETTINGS_POLICY),
    ("networking.gke.io/v1", "HealthCheckPolicy"): resource(HEALTH_CHECK_POLICY),
    ("networking.gke.io/v1", "GCPBackendPolicy"): resource(GCP_BACKEND_POLICY),
    ("networking.istio.io/v1alpha3", "EnvoyFilter"): resource(ENVOY_FILTER),
    ("networking.istio.io/v1", "DestinationRule"): resource(DESTINATION_RULE),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): resource(
        record("selector endpoints", selector=SELECTOR, endpoints=SCRAPES)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): resource(
        record("selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=SCRAPES)
    ),
}
