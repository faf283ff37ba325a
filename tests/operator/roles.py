"""What the operator's Role allows, and what a request needs."""

from pathlib import Path

import yaml
from aiohttp import web

Use = tuple[str, str, str]
"""An API group, a resource, a verb."""

_MANIFESTS = Path(__file__).parents[2] / "manifests" / "components" / "operator"


def read_rules() -> dict[Use, frozenset[str]]:
    """What the manifests' Role allows, each with the names that it is bound to; none: any."""
    documents = yaml.safe_load_all((_MANIFESTS / "access.yaml").read_text())
    (role,) = [each for each in documents if each["kind"] == "Role"]
    return {
        (group, resource, verb): frozenset(rule.get("resourceNames", ()))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def find_use(request: web.Request) -> Use | None:
    """The rule that a request needs; `None` for what everybody may do."""
    match = request.match_info
    if "plural" not in match:
        return None
    group = match["api"].rpartition("/")[0]
    part = "/status" if request.path.endswith("/status") else ""
    reads = "get" if "name" in match else "watch" if "watch" in request.query else "list"
    verbs = {"GET": reads, "POST": "create", "PUT": "update", "DELETE": "delete"}
    return group, match["plural"] + part, verbs[request.method]
