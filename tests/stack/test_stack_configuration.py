"""The shipped Envoy configurations, read by a real Envoy."""

import subprocess

import pytest

from extproc.router.routing.admission import FAIRNESS_ID, OBJECTIVE, TTL
from extproc.router.stream.names import GUARDED
from tests.stack import gateway
from tests.stack.gateway import SHIPPED, Tree, cluster_named, find, load
from tests.tables import table

pytestmark = pytest.mark.envoy

BOOTSTRAPS = sorted(
    path.name for path in SHIPPED.glob("*.yaml") if "static_resources" in path.read_text()
)
EVERY = [
    *BOOTSTRAPS,
    *(f"../manifests/overlays/{name}/envoy.yaml" for name in ("gateway", "sidecar")),
]
STANDALONE = load("standalone.yaml")
LIMIT_BYTES = 50_331_648  # the service's default of server.max_body_bytes


@table("name", BOOTSTRAPS)
def test_envoy_accepts_configuration(name: str) -> None:
    options = ("--mode", "validate", "--log-level", "warning", "-c")
    command = [gateway.find_envoy(), *options, str(SHIPPED / name)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1:] == [f"configuration '{SHIPPED / name}' OK"]
    assert "deprecated" not in result.stderr.lower()


@table("name", EVERY)
def test_every_file_removes_the_same_of_what_clients_say(name: str) -> None:
    key = "early_header_mutation_extensions"

    assert [*find(load(name), key)] == [*find(load("standalone.yaml"), key)]


def test_what_a_client_says_about_endpoint_and_pool_is_removed() -> None:
    (extensions,) = find(STANDALONE, "early_header_mutation_extensions")
    mutations = extensions[0]["typed_config"]["mutations"]
    removals = [
        each["remove_on_match"]["key_matcher"] for each in mutations if "remove_on_match" in each
    ]

    assert {each["prefix"] for each in removals} == {*GUARDED, "x-envoy-"}
    assert mutations[-1] == {"remove": "x-served-by"}


def test_priorities_and_clients_are_kept_from_the_endpoints() -> None:
    """What the service reads must get as far, and no further, whether it is up or down."""
    [removed] = find(STANDALONE, "request_headers_to_remove")

    assert {*removed} == {OBJECTIVE[1], FAIRNESS_ID[1], TTL}, (
        "llm-d's go by the names of GIE from here on"
    )


def test_the_largest_body_is_the_services_and_breakers_are_raised() -> None:
    listener = STANDALONE["static_resources"]["listeners"][0]
    breakers = [
        cluster_named(STANDALONE, which)["circuit_breakers"] for which in ("extproc", "vllm")
    ]

    assert listener["per_connection_buffer_limit_bytes"] == LIMIT_BYTES
    assert list(find(listener, "initial_stream_window_size")) == [LIMIT_BYTES]
    for [limits] in (each["thresholds"] for each in breakers):
        assert {
            limits[f"max_{each}"] for each in ("connections", "pending_requests", "requests")
        } == {100_000}


def test_the_stream_stays_open_at_the_cost_of_no_message() -> None:
    config = gateway.ext_proc_filter(STANDALONE)

    assert config["processing_mode"] == {
        "request_header_mode": "SEND",
        "request_body_mode": "BUFFERED",
        "response_header_mode": "SKIP",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SEND",
    }
    assert config["metadata_options"] == {
        "receiving_namespaces": {"untyped": ["envoy.lb", "extproc"]}
    }
    assert config["failure_mode_allow"] is True


def test_sidecar_differs_from_standalone_only_in_addresses() -> None:
    standalone, sidecar = (
        _without_addresses(load(f"{name}.yaml")) for name in ("standalone", "sidecar")
    )

    assert sidecar == standalone


def _without_addresses(tree: Tree) -> Tree:
    gateway.show_addresses(tree)
    del tree["admin"]
    resources = tree["static_resources"]
    resources["listeners"] = [one for one in resources["listeners"] if one["name"] == "clients"]
    for listener in resources["listeners"]:
        del listener["address"]
    resources["clusters"] = [
        one for one in resources["clusters"] if one["name"] in {"extproc", "vllm"}
    ]
    for one in resources["clusters"]:
        for field in ("type", "cluster_type", "load_assignment"):
            one.pop(field, None)
    return tree


@table("name", BOOTSTRAPS)
def test_access_logs_go_to_the_service(name: str) -> None:
    """On the listener for clients, at once, with the one header that the verdict needs."""
    listener = load(name)["static_resources"]["listeners"][0]
    (logs,) = find(listener, "access_log")
    [log_config] = [
        log["typed_config"] for log in logs if log["name"] == "envoy.access_loggers.http_grpc"
    ]

    assert log_config["common_config"] == {
        "log_name": "extproc",
        "transport_api_version": "V3",
        "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
        "buffer_flush_interval": "0.02s",
    }
    assert log_config["additional_response_headers_to_log"] == ["retry-after"]
