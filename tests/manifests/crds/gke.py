"""GKE's Gateway controller of 2025: networking.gke.io/v1.

Read in GoogleCloudPlatform/gke-gateway-api, which has no releases.
"""

from typing import Final

from tests.manifests.crds.words import (
    GROUP,
    KIND,
    NAME,
    PORT,
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
HTTP_CHECK: Final = record("", port=PORT, requestPath=URL_PATH)
# A union: `type`, and the one of its name.
HEALTH_CHECK: Final = record(
    "type", type=one_of("HTTP", "HTTPS", "HTTP2", "GRPC", "TCP"), httpHealthCheck=HTTP_CHECK
) | {"if": {"required": ["httpHealthCheck"]}, "then": {"properties": {"type": {"const": "HTTP"}}}}
HEALTH_CHECK_POLICY: Final = record(
    "targetRef",
    targetRef=TARGET,
    default=record("", timeoutSec=between(1, 300), config=HEALTH_CHECK),
)
GCP_BACKEND_POLICY: Final = record(
    "targetRef", targetRef=TARGET, default=record("", timeoutSec=between(1, 2_147_483_647))
)

SCHEMAS: Final = {
    ("networking.gke.io/v1", "HealthCheckPolicy"): resource(HEALTH_CHECK_POLICY),
    ("networking.gke.io/v1", "GCPBackendPolicy"): resource(GCP_BACKEND_POLICY),
}
