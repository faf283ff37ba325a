"""What the ConfigMaps hold is what the programs take: the service, Envoy, bash."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc.cli import cli
from extproc.router.settings.reading import load_settings
from tests.manifests import rendering
from tests.manifests.rendering import each
from tests.stack.gateway import cluster_named, doors, ext_proc_filter, find_envoy, show_addresses

Tree = dict[str, Any]

ENVOY = rendering.MANIFESTS.parent / "envoy"
OTHER_GATEWAYS = ["overlays/envoy-gateway", "overlays/istio", *rendering.PICKERS]
WITH_ENVOY = ["overlays/gateway", "overlays/sidecar", "overlays/simulated"]


def read_yaml(path: Path) -> Tree:
    tree: Tree = yaml.safe_load(path.read_text())
    return tree


def write_file(overlay: str, suffix: str, folder: Path) -> Path:
    """Writes the one file of an overlay's ConfigMaps whose name ends so."""
    [(name, text)] = rendering.config_files(overlay, suffix)
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_the_service_takes_its_configuration_and_its_environment(
    overlay: str, tmp_path: Path
) -> None:
    path = write_file(overlay, "extproc.yaml", tmp_path)
    [container] = [
        each
        for each in rendering.containers(rendering.pods(overlay)["extproc"])
        if each["name"] == "extproc"
    ]

    result = CliRunner().invoke(cli, ["check", str(path)])
    settings = load_settings(path, rendering.service_environment(overlay))

    assert result.exit_code == 0, result.output
    is_sidecar = "/s" in overlay
    assert settings.server.listen == (
        "unix:/run/extproc/ext_proc.sock" if is_sidecar else "0.0.0.0:9002"
    )
    assert settings.server.admin == "0.0.0.0:9090"  # not on loopback, as it is elsewhere
    assert settings.server.xds is (overlay == "overlays/gateway")
    assert container["args"] == ["serve", "--config", "/etc/extproc/extproc.yaml"]


def test_a_simulated_endpoint_says_the_name_of_its_pod() -> None:
    [container] = rendering.containers(rendering.pods("overlays/simulated")["vllm"])
    access_log = {each["name"]: each.get("valueFrom") for each in container["env"]}

    assert container["args"][-2:] == ["--name", "$(POD_NAME)"]
    assert access_log["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}


@pytest.mark.envoy
@pytest.mark.parametrize("overlay", WITH_ENVOY)
def test_envoy_takes_its_configuration(overlay: str, tmp_path: Path) -> None:
    assert validate(write_file(overlay, "envoy.yaml", tmp_path)) == ""


def validate(path: Path) -> str:
    """Returns Envoy's complaint about a configuration, empty if it has none."""
    command = [find_envoy(), "--mode", "validate", "--log-level", "warning", "-c", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return result.stderr if result.returncode or "deprecated" in result.stderr.lower() else ""


@pytest.mark.envoy
@pytest.mark.parametrize("overlay", rendering.OVERLAYS)
def test_envoys_arguments_are_taken(overlay: str, tmp_path: Path) -> None:
    """The options in the manifests are options of this Envoy; the file is another one's."""
    path = tmp_path / "envoy.yaml"
    path.write_text("{}")
    for pod in rendering.pods(overlay).values():
        for container in pod["containers"]:
            if container["name"] == "envoy":
                arguments = [str(path) if "/" in each else each for each in container["args"]]
                command = [find_envoy(), *arguments, "--mode", "validate"]
                subprocess.run(command, capture_output=True, timeout=60, check=True)


@pytest.mark.envoy
def test_envoy_takes_what_istio_adds(tmp_path: Path) -> None:
    """The patches of the EnvoyFilter, put where Istio puts them."""
    patches = rendering.reference_names("overlays/istio", "EnvoyFilter", "extproc")["spec"][
        "configPatches"
    ]
    values = [
        (each["applyTo"], each["patch"]["operation"], each["patch"]["value"]) for each in patches
    ]
    by_place = {(place, operation): value for place, operation, value in values}
    tree = read_yaml(ENVOY / "standalone.yaml")
    listener = tree["static_resources"]["listeners"][0] | by_place["LISTENER", "MERGE"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager |= by_place["NETWORK_FILTER", "MERGE"]["typed_config"]
    ext_proc_filter(tree).update(by_place["HTTP_FILTER", "INSERT_BEFORE"]["typed_config"])
    vllm = cluster_named(tree, "vllm") | by_place["CLUSTER", "MERGE"]
    tree["static_resources"] = {
        "listeners": [listener],
        "clusters": [by_place["CLUSTER", "ADD"], vllm],
    }
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(tree))

    assert len(by_place) == len(patches)
    assert validate(path) == ""


def test_istio_asks_the_service_and_sends_access_logs_as_the_shipped_envoy_does() -> None:
    patches = rendering.reference_names("overlays/istio", "EnvoyFilter", "extproc")["spec"][
        "configPatches"
    ]
    values = {each["applyTo"]: each["patch"]["value"] for each in patches}
    shipped = read_yaml(ENVOY / "sidecar.yaml")["static_resources"]["listeners"][0]
    manager = shipped["filter_chains"][0]["filters"][0]["typed_config"]

    assert values["HTTP_FILTER"]["typed_config"] == ext_proc_filter(shipped)
    assert values["NETWORK_FILTER"]["typed_config"]["access_log"] == manager["access_log"][1:]


@each(OTHER_GATEWAYS)
def test_routes_have_the_doors_of_the_shipped_envoy(overlay: str) -> None:
    [rule] = rendering.reference_names(overlay, "HTTPRoute", "vllm")["spec"]["rules"]

    assert [match["path"] for match in rule["matches"]] == [
        {"type": "Exact", "value": path} for path in doors(read_yaml(ENVOY / "standalone.yaml"))
    ]


def test_the_sidecars_envoy_is_the_shipped_one_and_the_gateways_at_other_addresses() -> None:
    """envoy/xds.yaml, with the sidecar's metrics listener and the service found by DNS."""
    shipped = (ENVOY / "sidecar.yaml").read_text()
    assert (rendering.MANIFESTS / "overlays/sidecar/envoy.yaml").read_text() == shipped
    tree = read_yaml(rendering.MANIFESTS / "overlays/gateway/envoy.yaml")
    expected, sidecar = read_yaml(ENVOY / "xds.yaml"), yaml.safe_load(shipped)
    listeners = expected["static_resources"]["listeners"]
    listeners[0]["address"]["socket_address"]["address"] = "0.0.0.0"
    listeners.append(sidecar["static_resources"]["listeners"][1])
    service = cluster_named(expected, "extproc")
    del service["type"]
    service["cluster_type"] = cluster_named(sidecar, "vllm")["cluster_type"]
    [entry] = service["load_assignment"]["endpoints"][0]["lb_endpoints"]
    entry["endpoint"]["address"]["socket_address"]["address"] = "extproc"
    expected["static_resources"]["clusters"].append(cluster_named(sidecar, "admin"))

    assert tree == expected


def test_envoy_over_xds_is_the_standalone_one_without_its_pool() -> None:
    """What the two modes share stays the same: all but the routes and the pool's cluster."""
    xds, standalone = read_yaml(ENVOY / "xds.yaml"), read_yaml(ENVOY / "standalone.yaml")
    for tree in (xds, standalone):
        show_addresses(tree)
        manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
            "typed_config"
        ]
        refusal, *routes = manager.pop("route_config")["virtual_hosts"][0]["routes"]
        tree["routes"] = [
            refusal,
            *(
                (
                    each["route"].get("retry_policy"),
                    each["route"]["timeout"],
                    each["response_headers_to_add"],
                )
                for each in routes
            ),
        ]
        service = cluster_named(tree, "extproc")
        service.pop("typed_extension_protocol_options")
        tree["static_resources"]["clusters"] = [service]
    refusal, unread, others = standalone["routes"]
    assert xds["routes"] == [refusal, unread, others, others]
    assert unread[0] is None
    for place in ("node", "dynamic_resources", "routes"):
        xds.pop(place, None)
        standalone.pop(place, None)

    assert xds == standalone


def test_who_is_held_is_refused_before_envoy_gateway_stops_waiting() -> None:
    """It has no setting that lets the service ask for more time: then the request passes the queue by."""
    [text] = [text for _, text in rendering.config_files("overlays/envoy-gateway", "extproc.yaml")]
    policy = rendering.reference_names("overlays/envoy-gateway", "EnvoyExtensionPolicy", "extproc")
    timeout_s = float(policy["spec"]["extProc"][0]["messageTimeout"].removesuffix("s"))

    waits_s = [pool.get("hold", {}).get("wait_s", 0.0) for pool in yaml.safe_load(text)["pools"]]

    assert timeout_s > max(waits_s)
    assert (
        "longer than its `wait_s`"
        in (rendering.MANIFESTS / "components/envoy-gateway/policies.yaml").read_text()
    )


def test_envoy_gateway_sends_access_logs() -> None:
    proxy = rendering.reference_names("overlays/envoy-gateway", "EnvoyProxy", "llm")
    policy = rendering.reference_names("overlays/envoy-gateway", "EnvoyExtensionPolicy", "extproc")
    [setting] = proxy["spec"]["telemetry"]["accessLog"]["settings"]
    [log] = [sink["als"] for sink in setting["sinks"] if sink["type"] == "ALS"]
    [asked] = policy["spec"]["extProc"][0]["backendRefs"]

    assert (log["backendRefs"], log["http"]["responseHeaders"]) == ([asked], ["retry-after"])


@pytest.mark.parametrize("gateway", ["istio/envoyfilter", "envoy-gateway/policy"])
def test_components_show_requests_by_the_blocks_of_plain_envoy(gateway: str) -> None:
    blocks = yaml.safe_load((rendering.MANIFESTS.parent / "envoy/shadow.yaml").read_text())
    path = rendering.MANIFESTS / f"components/shadow/{gateway}.yaml"
    spec = yaml.safe_load(path.read_text())["spec"]
    patches = spec.get("jsonPatches") or spec["configPatches"]
    cluster, filter_ = ((one.get("operation") or one["patch"])["value"] for one in patches)
    [wanted] = blocks["clusters"]
    for one in (cluster, wanted):
        del one["type"], one["load_assignment"]["endpoints"]

    assert [cluster, filter_] == [wanted, *blocks["http_filters"]]
