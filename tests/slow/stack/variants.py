"""Envoys as operators configure them, all in one: a listener each, with clusters of its own."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Final

import yaml

from tests.stack.gateway import SHIPPED, Edit, Tree, cluster_named, ext_proc_filter, find
from tests.stack.pickers import FULL_DUPLEX, GATEWAYS
from tests.stack.variants import MODES, in_mode

DOCS: Final = (SHIPPED.parent / "docs" / "how-to" / "plain-envoy.md").read_text()
PER_ROUTE: Final = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
MB: Final = 1_000_000
# Less than a request is held here: without a word of the service Envoy would give up.
TIMEOUT_S: Final = 5.0


def hold_at_most(tree: Tree, limit_bytes: int) -> None:
    tree["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = limit_bytes


def a_part_of_1_mb(tree: Tree) -> None:
    in_mode("BUFFERED_PARTIAL")(tree)
    hold_at_most(tree, MB)


def small_buffer(tree: Tree) -> None:
    hold_at_most(tree, 65_536)


def impatient(tree: Tree) -> None:
    """As shipped, but with a short time for answers of the service, and no way around it."""
    ext_proc_filter(tree).update(message_timeout=f"{TIMEOUT_S}s", failure_mode_allow=False)


def impatient_in_full_duplex(tree: Tree) -> None:
    """As gateways configure it for an InferencePool."""
    impatient(tree)
    config = ext_proc_filter(tree)
    config.pop("allow_mode_override")
    config["processing_mode"] = FULL_DUPLEX


def route_batch_to_second(tree: Tree) -> None:
    """Adds a route for `/batch/…` whose ext_proc streams name the pool `second`."""
    for host in next(find(tree, "virtual_hosts")):
        (usual,) = [route for route in host["routes"] if route["match"] == {"prefix": "/"}]
        metadata = [{"key": "x-extproc-pool", "value": "second"}]
        overrides = {"@type": PER_ROUTE, "overrides": {"grpc_initial_metadata": metadata}}
        batch = {
            **usual,
            "match": {"prefix": "/batch/"},
            "typed_per_filter_config": {"envoy.filters.http.ext_proc": overrides},
        }
        batch["route"] = {**usual["route"], "prefix_rewrite": "/"}
        host["routes"].insert(0, batch)
    for permissions in find(tree, "permissions"):
        permissions.append({"url_path": {"path": {"prefix": "/batch/v1/"}}})


def split_cluster(tree: Tree) -> None:
    """As how-to/models-and-lora.md has it without xDS: a cluster per pool, chosen by the service's header."""
    llama = cluster_named(tree, "vllm")
    qwen = deepcopy(llama)
    for one, name, keep in ((llama, "llama", slice(0, 2)), (qwen, "qwen", slice(2, 4))):
        one["name"] = one["load_assignment"]["cluster_name"] = name
        endpoints = one["load_assignment"]["endpoints"][0]
        endpoints["lb_endpoints"] = endpoints["lb_endpoints"][keep]
    tree["static_resources"]["clusters"].append(qwen)
    for host in next(find(tree, "virtual_hosts")):
        (route,) = [route for route in host["routes"] if route["match"] == {"prefix": "/"}]
        named = deepcopy(route)
        named["match"]["headers"] = [{"name": "x-extproc-pool", "present_match": True}]
        del named["route"]["cluster"]
        named["route"]["cluster_header"] = "x-extproc-pool"
        closed = {"match": {"prefix": "/"}, "direct_response": {"status": 503}}
        host["routes"] = [named, closed]


def open_ping(tree: Tree) -> None:
    (permissions,) = find(tree, "permissions")
    permissions.append({"url_path": {"path": {"exact": "/ping"}}})


def lock(tree: Tree) -> None:
    """The filter that docs/how-to/plain-envoy.md shows for API keys."""
    [shown] = [
        block.partition("```")[0] for block in DOCS.split("```yaml\n") if "api_key_auth" in block
    ][-1:]
    filters = next(find(tree, "http_filters"))
    names = [each["name"] for each in filters]
    filters[names.index("envoy.filters.http.ext_proc") : 0] = yaml.safe_load(shown)


def headers_instead_of_the_log(tree: Tree) -> None:
    """A gateway that sends response headers and keeps no log for us."""
    (logs,) = find(tree["static_resources"]["listeners"][0], "access_log")
    del logs[1]
    ext_proc_filter(tree)["processing_mode"]["response_header_mode"] = "SEND"


VARIANTS: Final[Mapping[str, Edit]] = {
    **MODES,
    "streamed_at_once": in_mode("STREAMED", send_body_without_waiting_for_header_response=True),
    **{
        edit.__name__: edit
        for edit in (
            *(a_part_of_1_mb, small_buffer, impatient, impatient_in_full_duplex),
            *(route_batch_to_second, split_cluster, open_ping, lock),
            headers_instead_of_the_log,
        )
    },
    **{gateway.listener: gateway.edit for gateway in GATEWAYS},
}
