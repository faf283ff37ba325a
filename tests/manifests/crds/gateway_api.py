"""Gateway API 1.4, standard channel: gateway.networking.k8s.io/v1.

Read in kubernetes-sigs/gateway-api. Filters, TLS and who may attach, which no manifest of ours has,
are not looked into.
"""

from typing import Final

from tests.manifests.crds import words

# Of all of Gateway API and its extensions, GEP-2257.
DURATION: Final[words.Schema] = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
CONTROLLER: Final[words.Schema] = {
    "type": "string",
    "pattern": "^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9/._~%!$&'()*+,;=:-]+$",
}
HEADER: Final[words.Schema] = {
    "type": "string",
    "pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
    "maxLength": 256,
}

PARAMETERS: Final = words.record(
    "group kind name", group=words.GROUP, kind=words.KIND, name=words.NAME, namespace=words.NAME
)
GATEWAY_CLASS: Final = words.record(
    "controllerName", controllerName=CONTROLLER, parametersRef=PARAMETERS
)
LISTENER: Final = words.record(
    "name port protocol",
    name=words.NAME,
    port=words.PORT,
    # A domain's own, as example.com/bar, may stand there too; none of ours does.
    protocol=words.one_of("HTTP", "HTTPS", "TLS", "TCP", "UDP"),
    tls=words.FREE,
)
GATEWAY: Final = words.record(
    "gatewayClassName listeners",
    gatewayClassName=words.NAME,
    listeners=words.some(LISTENER, 64),
    infrastructure=words.record(
        "",
        annotations=words.STRINGS | {"maxProperties": 8},
        parametersRef=words.record(
            "group kind name", group=words.GROUP, kind=words.KIND, name=words.NAME
        ),
    ),
)

MATCH_TYPES: Final = words.one_of("Exact", "RegularExpression")
MATCH: Final = words.record(
    "",
    path=words.record(
        "",
        type=words.one_of("Exact", "PathPrefix", "RegularExpression"),
        value={"type": "string", "pattern": "^/", "maxLength": 1_024},
    ),
    headers=words.any_number(
        words.record("name value", type=MATCH_TYPES, name=HEADER, value=words.TEXT), 16
    ),
)
BACKEND: Final = words.record(
    "name",
    group=words.GROUP,
    kind=words.KIND,
    name=words.NAME,
    namespace=words.NAME,
    port=words.PORT,
) | {
    # A Service is named with its port.
    "if": {"properties": {"group": {"const": ""}, "kind": {"const": "Service"}}},
    "then": {"required": ["port"]},
}
RULE: Final = words.record(
    "",
    name=words.NAME,
    matches=words.any_number(MATCH, 64),
    backendRefs=words.any_number(BACKEND, 16),
    timeouts=words.record("", request=DURATION),
)
HTTP_ROUTE: Final = words.record(
    "",
    parentRefs=words.any_number(
        words.record(
            "name",
            group=words.GROUP,
            kind=words.KIND,
            name=words.NAME,
            namespace=words.NAME,
            port=words.PORT,
        ),
        32,
    ),
    rules=words.some(RULE, 16),
)

SCHEMAS: Final = {
    ("gateway.networking.k8s.io/v1", "GatewayClass"): words.resource(GATEWAY_CLASS),
    ("gateway.networking.k8s.io/v1", "Gateway"): words.resource(GATEWAY),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): words.resource(HTTP_ROUTE),
}
