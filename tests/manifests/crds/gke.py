"""GKE's Gateway controller of 2025: networking.gke.io/v1. Whole kinds.

Read in GoogleCloudPlatform/gke-gateway-api, which has no releases.
"""

from typing import Final

from tests.manifests.crds.words import (
    FLAG,
    GROUP,
    KIND,
    NAME,
    PORT,
    STRING,
    Schema,
    between,
    one_of,
    record,
    resource,
)

TARGET: Final = record("group kind name", group=GROUP, kind=KIND, name=NAME, namespace=NAME)
URL_PATH: Final[Schema] = {
    "type": "string",
    "maxLength": 2_048,
    "pattern": r"/[A-Za-z0-9/\-._~%!?$&'()*+,;=:]*$",
}
CHECKED: Final = {
    "port": PORT,
    "portName": {"type": "string", "maxLength": 63},
    "portSpecification": one_of("USE_FIXED_PORT", "USE_NAMED_PORT", "USE_SERVING_PORT"),
}
HEADED: Final = {"proxyHeader": one_of("NONE", "PROXY_V1"), "response": STRING}
HTTP_CHECK: Final = record("", **CHECKED, **HEADED, host=STRING, requestPath=URL_PATH)
# A union: `type`, and the one of its name.
HEALTH_CHECK: Final = record(
    "type",
    type=one_of("HTTP", "HTTPS", "HTTP2", "GRPC", "TCP"),
    httpHealthCheck=HTTP_CHECK,
    httpsHealthCheck=HTTP_CHECK,
    http2HealthCheck=HTTP_CHECK,
    grpcHealthCheck=record("", **CHECKED, grpcServiceName={"type": "string", "maxLength": 1_024}),
    tcpHealthCheck=record("", **CHECKED, **HEADED, request=STRING),
) | {
    "allOf": [
        {
            "if": {"required": [f"{kind.lower()}HealthCheck"]},
            "then": {"properties": {"type": {"const": kind}}},
        }
        for kind in ("HTTP", "HTTPS", "HTTP2", "GRPC", "TCP")
    ]
}
HEALTH_CHECK_POLICY: Final = record(
    "targetRef",
    targetRef=TARGET,
    default=record(
        "",
        checkIntervalSec=between(1, 300),
        timeoutSec=between(1, 300),
        healthyThreshold=between(1, 10),
        unhealthyThreshold=between(1, 10),
        config=HEALTH_CHECK,
        logConfig=record("", enabled=FLAG),
    ),
)
AFFINITIES: Final = one_of(
    *("CLIENT_IP", "CLIENT_IP_PORT_PROTO", "CLIENT_IP_PROTO", "GENERATED_COOKIE", "HEADER_FIELD"),
    *("HTTP_COOKIE", "NONE"),
)
GCP_BACKEND_POLICY: Final = record(
    "targetRef",
    targetRef=TARGET,
    default=record(
        "",
        backendPreference=one_of("DEFAULT", "PREFERRED"),
        timeoutSec=between(1, 2_147_483_647),
        connectionDraining=record("", drainingTimeoutSec=between(0, 3_600)),
        maxRatePerEndpoint=between(1, 1_000_000_000),
        logging=record("", enabled=FLAG, sampleRate=between(0, 1_000_000)),
        securityPolicy=STRING,
        sessionAffinity=record("", type=AFFINITIES, cookieTtlSec=between(0, 1_209_600)),
        iap=record("", enabled=FLAG, clientID=STRING, oauth2ClientSecret=record("", name=STRING)),
    ),
)

SCHEMAS: Final = {
    ("networking.gke.io/v1", "HealthCheckPolicy"): resource(HEALTH_CHECK_POLICY),
    ("networking.gke.io/v1", "GCPBackendPolicy"): resource(GCP_BACKEND_POLICY),
}
