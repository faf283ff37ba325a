"""Gateway API 1.4, standard channel: gateway.networking.k8s.io/v1.

Read in kubernetes-sigs/gateway-api. Filters, TLS and who may attach, which no manifest of ours has, are not
looked into.
"""

from typing import Final

from tests.manifests.crds.words import (
    FREE,
    GROUP,
    KIND,
    NAME,
    PORT,
    STRINGS,
    TEXT,
    Schema,
    any_number,
    one_of,
    record,
    resource,
    some,
)

# Of all of Gateway API and its extensions, GEP-2257.
DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
CONTROLLER: Final[Schema] = {
    "type": "string",
    "pattern": "^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9/._~%!$&'()*+,;=:-]+$",
}
HEADER: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "maxLength": 256}

PARAMETERS: Final = record("group kind name", group=GROUP, kind=KIND, name=NAME, namespace=NAME)
GATEWAY_CLASS: Final = record("controllerName", controllerName=CONTROLLER, parametersRef=PARAMETERS)
LISTENER: Final = record(
    "name port protocol",
    name=NAME,
    port=PORT,
    # A domain's own, as example.com/bar, may stand there too; none of ours does.
    protocol=one_of("HTTP", "HTTPS", "TLS", "TCP", "UDP"),
    tls=FREE,
)
GATEWAY: Final = record(
    "gatewayClassName listeners",
    gatewayClassName=NAME,
    listeners=some(LISTENER, 64),
    infrastructure=record(
        "",
        annotations=STRINGS | {"maxProperties": 8},
        parametersRef=record("group kind name", group=GROUP, kind=KIND, name=NAME),
    ),
)

MATCH_TYPES: Final = one_of("Exact", "RegularExpression")
MATCH: Final = record(
    "",
    path=record(
        "",
        type=one_of("Exact", "PathPrefix", "RegularExpression"),
        value={"type": "string", "pattern": "^/", "maxLength": 1_024},
    ),
    headers=any_number(record("name value", type=MATCH_TYPES, name=HEADER, value=TEXT), 16),
)
BACKEND: Final = record("name", group=GROUP, kind=KIND, name=NAME, namespace=NAME, port=PORT) | {
    # A Service is named with its port.
    "if": {"properties": {"group": {"const": ""}, "kind": {"const": "Service"}}},
    "then": {"required": ["port"]},
}
RULE: Final = record(
    "",
    name=NAME,
    matches=any_number(MATCH, 64),
    backendRefs=any_number(BACKEND, 16),
    timeouts=record("", request=DURATION),
)
HTTP_ROUTE: Final = record(
    "",
    parentRefs=any_number(record("name", group=GROUP, kind=KIND, name=NAME, namespace=NAME, port=PORT), 32),
    rules=some(RULE, 16),
)

SCHEMAS: Final = {
    ("gateway.networking.k8s.io/v1", "GatewayClass"): resource(GATEWAY_CLASS),
    ("gateway.networking.k8s.io/v1", "Gateway"): resource(GATEWAY),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): resource(HTTP_ROUTE),
}
