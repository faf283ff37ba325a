"""Whether an object has the types that a version of Kubernetes gives it."""

import jsonschema
import kubernetes_validate

from extproc.operator.crd import build_spec_schema
from tests.manifests.crds.kinds import SCHEMAS
from tests.manifests.rendering import Object
from tests.operator.structural import list_refusals

# The oldest release that docs/how-to/kubernetes.md promises, and the newest.
KUBERNETES = ["1.30", "1.37"]


def check(item: Object, version: str) -> None:
    """Refuses an object that the API server of this version would not take as it is."""
    schema = SCHEMAS.get((item["apiVersion"], item["kind"]))
    if item["kind"] == "Benchmark":
        assert list_refusals(build_spec_schema(), item["spec"]) == []
    elif schema is None:
        kubernetes_validate.validate(item, version, strict=True)
    else:
        jsonschema.validate(item, schema, jsonschema.Draft202012Validator)
