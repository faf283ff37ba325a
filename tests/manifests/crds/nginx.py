"""NGINX Gateway Fabric 2.4, the first with ProxySettingsPolicy: gateway.nginx.org/v1alpha1. Whole kinds.

Read in nginx/nginx-gateway-fabric.
"""

from typing import Final

from tests.manifests.crds.words import FLAG, NAME, Schema, one_of, record, resource, some

SIZE: Final[Schema] = {"type": "string", "pattern": r"^\d{1,4}(k|m|g)?$"}
DURATION: Final[Schema] = {"type": "string", "pattern": "^[0-9]{1,4}(ms|s|m|h)?$"}
TARGET: Final = record(
    "group kind name",
    group=one_of("gateway.networking.k8s.io"),
    kind=one_of("Gateway", "HTTPRoute", "GRPCRoute"),
    name=NAME,
)
CLIENT_SETTINGS_POLICY: Final = record(
    "targetRef", targetRef=TARGET, body=record("", maxSize=SIZE, timeout=DURATION)
)
PROXY_SETTINGS_POLICY: Final = record(
    "targetRefs",
    targetRefs=some(TARGET, 16) | {"uniqueItems": True},
    buffering=record("", disable=FLAG),
)

SCHEMAS: Final = {
    ("gateway.nginx.org/v1alpha1", "ClientSettingsPolicy"): resource(CLIENT_SETTINGS_POLICY),
    ("gateway.nginx.org/v1alpha1", "ProxySettingsPolicy"): resource(PROXY_SETTINGS_POLICY),
}
