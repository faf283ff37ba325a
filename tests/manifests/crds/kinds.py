"""Every custom resource that the manifests use, by API version and kind.

Each module beside this one is a project's: which release, and from where. Its trees are written
after the project's CustomResourceDefinitions, and have the fields that our manifests use. Another
field is refused, as is a misspelt one: who uses it adds it here.
"""

from typing import Final

from tests.manifests.crds import (
    envoy_gateway,
    gateway_api,
    gke,
    inference_extension,
    istio,
    nginx,
    prometheus,
)
from tests.manifests.crds.words import Schema

SCHEMAS: Final[dict[tuple[str, str], Schema]] = {
    **gateway_api.SCHEMAS,
    **inference_extension.SCHEMAS,
    **envoy_gateway.SCHEMAS,
    **istio.SCHEMAS,
    **nginx.SCHEMAS,
    **gke.SCHEMAS,
    **prometheus.SCHEMAS,
}
