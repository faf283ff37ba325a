"""Real parts, each misconfigured in one way: endpoints, a service, Kubernetes; and what the command says."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from extproc.cli import cli
from extproc.doctor.collect import look_around
from tests.doctor.looking import NOWHERE, altered, doctor_settings, look, pool_fields, rules
from tests.hosting import hosting
from tests.router.cluster.api_server import ApiServer, serving_api, write_kubeconfig
from tests.router.cluster.objects import pod, slice_object
from tests.stack.client import chat_about
from tests.stack.ports import free_ports
from tests.stack.service import Service
from tests.stack.simulators import Simulators
from tests.tables import table
from tests.waiting import wait_until

H100 = "h100-llama8b-bf16"
FAR = {"name": "prefix_cache", "kv_tokens": 20_000}
HASH = {"name": "prefix_hash"}


@pytest.fixture(scope="module")
def simulated_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    options = ["--speed", "100", "--model", "tiny", "--profile", H100]
    with Simulators(tmp_path_factory.mktemp("fleet"), free_ports(2), *options) as fleet:
        fleet.wait_ready()
        yield fleet.addresses


@pytest.fixture(scope="module")
def doctored_service(
    simulated_addresses: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    port, admin = free_ports(2)
    service = Service(tmp_path_factory.mktemp("service"), port=port, admin_port=admin)
    service.configure([pool_fields(*simulated_addresses)])
    with service:
        service.wait_ready()
        yield service


def send_chats(address: str, count: int, words: int = 1, done: Event | None = None) -> None:
    for number in range(count):
        if done is not None and done.is_set():
            return
        body = chat_about(f"{number} " + "word " * words, model="tiny", max_tokens=1)
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(f"http://{address}/v1/chat/completions", body, headers)
        urllib.request.urlopen(asked, timeout=60).close()


def run_doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", "--seconds", "0.1", *arguments])


def test_a_healthy_service_has_nothing_wrong_and_what_was_not_seen_is_listed(
    doctored_service: Service,
) -> None:
    done, nobody = (
        run_doctor("--url", doctored_service.admin_url.removeprefix("http://")),
        run_doctor("--url", "127.0.0.1:1"),
    )

    assert done.exit_code == 0
    assert done.output.startswith("Nothing is wrong with what was looked at.\n")
    assert "not looked at  Envoy: not given; --envoy is its admin port" in done.output
    assert "127.0.0.1:1: Connection refused: give the running service's admin" in str(
        nobody.exception
    )


TWO_NAMES = 'tiny", "root": "t"}, {"id": "alias'


def test_where_nothing_answers_something_is_wrong(tmp_path: Path) -> None:
    service, engine, envoy = (f"127.0.0.1:{port}" for port in free_ports(3))
    path, server = tmp_path / "extproc.yaml", {"admin": service, "listen": "127.0.0.1:9002"}
    path.write_text(yaml.safe_dump({"server": server, "pools": [pool_fields(engine)]}))
    done = run_doctor(str(path), "--envoy", envoy, "--json")
    found = {each["rule"]: each["seen"] for each in json.loads(done.output)["findings"]}

    assert done.exit_code == 1
    assert found.keys() == {"not_running", "envoy_silent", "engine_silent"}
    assert f"http://{service}: Connection refused" in found["not_running"]
    assert f"http://{envoy}: Connection refused" in found["envoy_silent"]
    assert f"{engine} does not answer" in found["engine_silent"]


async def test_an_engine_that_wants_a_key_is_found_until_the_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lock(request: web.Request) -> web.Response:
        is_open = request.headers.get("authorization") == "Bearer k" or request.path == "/health"
        return web.json_response({"data": []}, status=200 if is_open else 401)

    path = tmp_path / "extproc.yaml"
    monkeypatch.setenv("GOOD", "k")
    monkeypatch.setenv("OTHER", "no")
    said = {}
    async with hosting({"/{any:.*}": lock}) as address:
        for name in ("", "OTHER", "GOOD", "NOT_HERE"):
            fields: dict[str, Any] = {"engine_key": {"env": name}} if name else {}
            fields["prefill"] = {"endpoints": {"static": [address]}}  # looked at with the same key
            path.write_text(yaml.safe_dump({"pools": [pool_fields(address, **fields)]}))
            done = await asyncio.to_thread(run_doctor, str(path), "--url", NOWHERE)
            said[name] = "engine_key:" in done.output
    assert said == {"": True, "OTHER": True, "GOOD": False, "NOT_HERE": False}
    assert "there is no variable NOT_HERE" in done.output
    assert "of 2 engines" in done.output


def test_the_command_prints_what_mends_it_as_text_and_as_json(
    simulated_addresses: list[str], tmp_path: Path
) -> None:
    path, server = tmp_path / "extproc.yaml", {"admin": "127.0.0.1:1"}
    path.write_text(
        yaml.safe_dump(
            {"server": server, "pools": [pool_fields(simulated_addresses[0], models=["gpt"])]}
        )
    )
    as_text, as_json = run_doctor(str(path)), json.loads(run_doctor(str(path), "--json").output)

    assert as_text.exit_code == 1
    assert (
        f"critical  model_not_served: pool tiny names gpt; in {simulated_addresses[0]} of 1 there is tiny\n"
        in as_text.output
    )
    assert "     fix  vllm serve … --served-model-name gpt" in as_text.output
    assert [each["rule"] for each in as_json["findings"]] == [
        "not_running",
        "model_not_served",
        "port_open",
        "model_unrouted",
    ]


@table(
    "change, fields, expected",
    [
        ({"enable_prefix_caching": "False"}, {}, {"prefix_caching_off"}),
        ({",block_size": "32"}, {}, {"block_sizes"}),
        ({}, {"strategy": FAR}, {"kv_tokens_corrected"}),
        ({}, {"strategy": FAR, "signals": False}, {"kv_tokens"}),
        ({"late_s": 60}, {}, {"clock"}),
        ({"model": "llama"}, {}, {"models_differ"}),
        ({"model": "llama"}, {"learn_models": True}, set()),
        ({"model": "llama"}, {"models": ["ti*"]}, {"model_unrouted"}),
        ({"model": "llama"}, {"models": ["tiny", "llama"]}, {"model_not_served"}),
        ({"model": '", "id": 5, "x": "'}, {}, {"models_differ"}),
        ({"model": TWO_NAMES}, {}, {"models_differ", "names_unknown"}),
        ({"model": "[" * 2_000, "was": '"tiny"'}, {}, set()),
    ],
)
def test_an_engine_unlike_a_pool_is_found(
    simulated_addresses: list[str], change: Any, fields: Any, expected: Any
) -> None:
    with altered(simulated_addresses[0], **change) as other:
        assert (
            rules(look(doctor_settings(other, simulated_addresses[1], **fields))).keys() == expected
        )


def test_what_others_say_neither_ends_the_report_nor_writes_lines_of_it(
    simulated_addresses: list[str], doctored_service: Service, tmp_path: Path
) -> None:
    path, server = (
        tmp_path / "extproc.yaml",
        {"admin": "127.0.0.1:1"},
    )  # a service may be at the default
    with altered(simulated_addresses[0], model=r"\u001b[2K\ncritical  no_such: fault") as other:
        path.write_text(
            yaml.safe_dump({"server": server, "pools": [pool_fields(other, models=["gpt"])]})
        )
        shown = run_doctor(str(path))
    with altered(
        doctored_service.admin_url.removeprefix("http://"), was='"endpoints"', model='"others"'
    ) as older:
        refused = run_doctor("--url", older)

    assert r"there is \x1b[2K\ncritical  no_such: fault" in shown.output
    assert "/pools: not what a service of this version says" in str(refused.exception)


def test_an_engine_faster_than_its_constants_is_found_where_no_signals_correct_them(
    simulated_addresses: list[str],
) -> None:
    send_chats(simulated_addresses[0], 25, words=2_000)

    found = rules(look(doctor_settings(*simulated_addresses, signals=False)))
    right = {"name": "prefix_cache", "engine": H100}

    assert "a token takes 0.19 ms by l4-llama8b-fp8" in found["engine_faster"]
    assert rules(look(doctor_settings(*simulated_addresses))) == {}
    assert rules(look(doctor_settings(*simulated_addresses, strategy=right))) == {}


def test_requests_that_go_around_the_service_are_found(
    simulated_addresses: list[str], doctored_service: Service
) -> None:
    doctored_service.apply([pool_fields(*simulated_addresses, strategy=HASH)])
    done = Event()
    sender = Thread(target=send_chats, args=(simulated_addresses[1], 10_000, 1, done))
    sender.start()
    found = rules(look(url=doctored_service.admin_url, window_s=1.0))
    done.set()
    sender.join()

    assert found.keys() == {"strangers"}


def test_an_endpoint_that_is_left_out_is_reported_with_its_reason(
    simulated_addresses: list[str], doctored_service: Service
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    doctored_service.apply(
        [
            pool_fields(
                simulated_addresses[0],
                address,
                strategy=HASH,
                probe={"interval_s": 0.1, "timeout_s": 1},
            )
        ]
    )
    wait_until(lambda: "unhealthy" in str(doctored_service.pools()))
    one = rules(look(url=doctored_service.admin_url))
    doctored_service.config.with_name("none.yaml").write_text("[]")
    doctored_service.apply([pool_fields(strategy=HASH, endpoints={"file": "none.yaml"})])
    wait_until(lambda: not doctored_service.pools()[0]["endpoints"])

    assert one.keys() == {"unhealthy"}
    assert f"{address} is unhealthy; its health: Connection refused" in one["unhealthy"]
    assert rules(look(url=doctored_service.admin_url)).keys() == {"no_endpoint"}


def test_a_file_that_is_not_in_force_is_found(
    simulated_addresses: list[str], doctored_service: Service
) -> None:
    doctored_service.apply([pool_fields(*simulated_addresses, strategy=HASH)])
    assert rules(
        look(doctor_settings(simulated_addresses[0], strategy=HASH), doctored_service.admin_url)
    ).keys() == {"config_differs"}

    doctored_service.write("pools: 5")
    wait_until(lambda: doctored_service.metric("extproc_config_refused"))
    assert rules(look(url=doctored_service.admin_url)).keys() == {"config_refused"}


async def test_kubernetes_shows_replicas_policies_and_pods(tmp_path: Path) -> None:
    server, config, token = ApiServer(), tmp_path / "kubeconfig", tmp_path / "token"
    token.write_text("token-1")
    source = {"service": "vllm", "port": 8000, "kubeconfig": str(config), "namespace": "default"}
    given = doctor_settings(listen=":9002", endpoints={"kubernetes": source})
    ours, labels = [pod("one", "10.0.0.8"), pod("two", "10.0.0.9")], {"app": "extproc"}
    server.put(
        slice_object("x", *ours, ports=[{"port": 9002, "protocol": "TCP"}], service="extproc")
    )
    server.put(slice_object("v", pod("a", "10.0.0.1"), pod("b", "10.0.0.2", ready=False)))
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": labels}})
    policies = server.of("networking.k8s.io/v1/networkpolicies")

    async def found() -> set[str]:
        return {*rules(await look_around("http://127.0.0.1:1", None, None, given, 0.0))}

    async with serving_api(server):
        write_kubeconfig(config, server.url, token)
        assert await found() == {"not_running", "pods_not_ready", "not_shared", "port_open"}
        policies.objects["p"] = {
            "metadata": {"name": "p"},
            "spec": {"podSelector": {"matchLabels": labels}},
        }
        assert await found() == {"not_running", "pods_not_ready", "not_shared"}
        policies.refusal = 403
        assert await found() == {"not_running", "pods_not_ready", "not_shared", "port_unseen"}
