"""The names of the protocols we speak: headers, metadata, services. Constants, for everybody to read."""

from typing import Final

# Endpoint Picker Protocol 1.0.0: the pick, the addresses a proxy allows, the address that answered.
DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = f"{DESTINATION}-subset"
SERVED: Final = f"{DESTINATION}-served"

# In a reply to the proxy: the pool that was chosen. In a stream's own metadata: the operator's
# choice.
POOL: Final = "x-extproc-pool"

# In a reply to the proxy: it must not buffer the request's body, not even for a retry.
UNREAD: Final = "x-extproc-unread"

# An attribute that Envoy sends where its filter's `response_attributes` name it: who served.
UPSTREAM: Final = "upstream.address"

# To llm-d's routing sidecar: which endpoint computes the prompt before the one behind it answers.
PREFILLER: Final = "x-prefiller-host-port"

REQUEST_ID: Final = "x-request-id"

# W3C Trace Context: read from a request's headers only where traces are made.
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# A client's headers of these prefixes are orders to an endpoint picker: ours, the Endpoint Picker
# Protocol's, those of the Gateway API Inference Extension and of llm-d; the last four to llm-d's
# sidecar, which sends prompts and caches to where they say. They end here unless the operator names
# them.
GUARDED: Final = (
    "x-gateway-destination-",
    "x-gateway-inference-",
    "x-gateway-model-",
    "x-llm-d-",
    "x-extproc-",
    "x-prefiller-",
    "x-encoder-hosts-",
    "x-kv-cache-source-",
    "x-data-parallel-",
)

# The guarded names that gateways and clients send. A reply that removes only these is cached as
# bytes; a client chooses any other name, so replies that remove one are not cached.
KNOWN_ORDERS: Final = frozenset(
    {
        DESTINATION,
        SUBSET,
        SERVED,
        POOL,
        UNREAD,
        "x-gateway-model-name",
        "x-gateway-model-name-rewrite",
        "x-gateway-inference-objective",
        "x-gateway-inference-fairness-id",
        "x-llm-d-inference-objective",
        "x-llm-d-inference-fairness-id",
        "x-llm-d-inference-ttl",
        PREFILLER,
        "x-encoder-hosts-ports",
        "x-kv-cache-source-host-port",
        "x-data-parallel-host-port",
        "x-data-parallel-rank",
    }
)

# llm-d's, in our refusals: why a valid request was not served.
DROPPED: Final = "x-llm-d-request-dropped-reason"

# What a session reads of a request's headers, beside those that a pool's keys name.
CONTENT_LENGTH: Final = "content-length"
PLAIN_HEADERS: Final = frozenset(
    {":method", ":path", CONTENT_LENGTH, "content-type", "upgrade", REQUEST_ID}
)
READ_HEADERS: Final = PLAIN_HEADERS | KNOWN_ORDERS

# And of a response's. Envoy's router adds the last one to what an endpoint wrote, not to replies of
# its own.
STATUS: Final = ":status"
RETRY_AFTER: Final = "retry-after"
UPSTREAM_TIME: Final = "x-envoy-upstream-service-time"
READ_RESPONSE_HEADERS: Final = frozenset({STATUS, RETRY_AFTER, UPSTREAM_TIME})

# Namespaces of dynamic metadata: EPP's two, and one with our decision, for operators.
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
LB_NAMESPACE: Final = "envoy.lb"
DECISION_NAMESPACE: Final = "extproc"
# Therein: a pick's number, 16 hexadecimal digits. The access log brings it back; no client can
# write it.
TICKET: Final = "pick"

EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS: Final = f"/{EXT_PROC}/Process"
DISCOVER: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"

# Services of gRPC health: the process lives; it can route (EPP 1.0.0, and the service that the
# probes in the Gateway API Inference Extension's manifests name).
LIVENESS: Final = "liveness"
READINESS: Final = ("", "readiness", EXT_PROC, "inference-extension")
