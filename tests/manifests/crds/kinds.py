"""Every custom resource that the manifests use, by API version and kind.

Each module beside this one is a project's: which release, from where, and what is left out. The trees are
written after the projects' CustomResourceDefinitions; a field that is not there is refused, as is a misspelt
one.
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
