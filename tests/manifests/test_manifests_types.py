"""Every object of every overlay has the fields that its type has, and no others."""

import re

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml

from extproc.cluster.objectives import InferenceObjective
from tests.manifests.crds import SCHEMAS
from tests.manifests.rendering import APPLICABLE, MANIFESTS, OVERLAYS, Object, named, render

# The oldest release that docs/kubernetes.md promises, and the newest.
KUBERNETES = ["1.30", "1.37"]


def check(item: Object, version: str) -> None:
    """Refuses an object that the API server of this version would not take as it is."""
    schema = SCHEMAS.get((item["apiVersion"], item["kind"]))
    if schema is None:
        kubernetes_validate.validate(item, version, strict=True)
    else:
        jsonschema.validate(item, schema)


def test_the_overlays_are_the_ones_that_are_documented() -> None:
    text = (MANIFESTS.parent / "docs" / "kubernetes.md").read_text()

    missing = [overlay for overlay in OVERLAYS if f"manifests/{overlay}" not in text]

    assert missing == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("overlay", APPLICABLE)
def test_objects_have_their_types(overlay: str, version: str) -> None:
    for item in render(overlay):
        check(item, version)


def test_the_objective_in_the_docs_has_its_type_and_counts_for_the_overlays_pool() -> None:
    text = (MANIFESTS.parent / "docs" / "gateways.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    [item] = [block for block in blocks if "kind" in block]
    check(item, "1.37")
    read = msgspec.convert(item, InferenceObjective)

    assert (item["kind"], read.priority) == ("InferenceObjective", -10)
    assert read.counts_for(named("overlays/gke", "InferencePool", "vllm")["metadata"]["name"])


def test_an_unknown_field_is_refused() -> None:
    """The check itself: both kinds of schema see a misspelt field."""
    deployment = named("base", "Deployment", "extproc")
    pod = deployment["spec"]["template"]["spec"]
    misspelt = deployment | {
        "spec": deployment["spec"] | {"template": {"spec": pod | {"terminationGracePeriod": 1}}}
    }
    route = named("overlays/istio", "HTTPRoute", "vllm")

    with pytest.raises(kubernetes_validate.ValidationError):
        check(misspelt, "1.37")
    with pytest.raises(jsonschema.ValidationError):
        check(route | {"spec": route["spec"] | {"rule": []}}, "1.37")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_two_objects_are_the_same(overlay: str) -> None:
    keys = [(item["kind"], item["metadata"]["name"]) for item in render(overlay)]

    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_namespaced_object_is_in_the_namespace(overlay: str) -> None:
    namespaces = {
        item["metadata"].get("namespace")
        for item in render(overlay)
        if item["kind"] not in {"GatewayClass", "PriorityClass"}
    }

    assert namespaces == {"default"}
