"""Real parts, each misconfigured in one way: endpoints, a service, and what the command says."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.doctor.altered import altered
from tests.doctor.looking import look, pool, rules, settings
from tests.stack.client import ask
from tests.stack.ports import free_ports
from tests.stack.service import Service
from tests.stack.simulators import Simulators
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    options = ["--speed", "100", "--model", "tiny", "--profile", "h100-llama8b-bf16"]
    with Simulators(tmp_path_factory.mktemp("fleet"), free_ports(2), *options) as fleet:
        fleet.wait_ready()
        yield fleet.addresses


@pytest.fixture(scope="module")
def service(fleet: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    port, admin = free_ports(2)
    service = Service(tmp_path_factory.mktemp("service"), port=port, admin_port=admin)
    service.configure([pool(*fleet)])
    with service:
        service.wait_ready()
        yield service


def send(address: str, count: int, words: int = 1) -> None:
    for number in range(count):
        body = ask(f"{number} " + "word " * words, model="tiny", max_tokens=1)
        request = urllib.request.Request(f"http://{address}/v1/chat/completions", body)
        request.add_header("content-type", "application/json")
        urllib.request.urlopen(request, timeout=60).close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extproc", "doctor", "--seconds", "0.1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_healthy_service_has_nothing_wrong_and_what_was_not_seen_is_said(service: Service) -> None:
    done = run("--url", service.admin_url.removeprefix("http://"))

    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing is wrong with what was looked at." in done.stdout
    assert "looked at      metrics of 2 of 2 engines" in done.stdout
    assert "not looked at  Envoy: not given; --envoy is its admin port" in done.stdout


def test_the_command_tells_what_mends_it_as_text_and_as_json(fleet: list[str], tmp_path: Path) -> None:
    path = tmp_path / "extproc.yaml"
    path.write_text(
        yaml.safe_dump({"server": {"admin": "127.0.0.1:1"}, "pools": [pool(fleet[0], models=["gpt"])]})
    )
    told, said = run(str(path)), json.loads(run(str(path), "--json").stdout)

    assert told.returncode == 1
    assert f"critical  pool tiny names gpt, and {fleet[0]} of 1 serves tiny\n" in told.stdout
    assert "     fix  vllm serve … --served-model-name gpt" in told.stdout
    assert "not looked at  the running service, http://127.0.0.1:1" in told.stdout
    assert [each["rule"] for each in said["findings"]] == ["model_not_served", "port_open", "model_unrouted"]


def test_without_a_configuration_to_go_by_it_ends_with_2() -> None:
    done = run("--url", "127.0.0.1:1")

    assert done.returncode == 2
    assert "give the running service's admin port with --url, or a configuration FILE" in done.stderr


def test_an_engine_without_prefix_caching_is_found(fleet: list[str]) -> None:
    with altered(fleet[0], ('enable_prefix_caching="True"', 'enable_prefix_caching="False"')) as off:
        found = rules(look(settings(off, fleet[1])))

    assert found == {"prefix_caching_off": f"prefix caching is off in {off}"}


def test_sizes_unlike_the_engines_are_found(fleet: list[str]) -> None:
    with altered(
        fleet[0], (' block_size="16"', ' block_size="32"'), (',block_size="16"', ',block_size="32"')
    ) as other:
        far = {"name": "prefix_cache", "kv_tokens": 20_000}
        found = rules(look(settings(other, fleet[1], strategy=far, signals=False)))
        corrected = rules(look(settings(*fleet, strategy=far)))

    assert found.keys() == {"kv_tokens", "block_sizes"}
    assert "blocks of [16, 32] tokens" in found["block_sizes"]
    assert corrected.keys() == {"kv_tokens_corrected"}


def test_a_clock_that_is_off_is_found(fleet: list[str]) -> None:
    with altered(fleet[0], late_s=60) as late:
        found = rules(look(settings(late, fleet[1])))

    assert found.keys() == {"clock"}
    assert found["clock"].startswith(f"the clock of {late} is -")


def test_models_that_differ_from_the_pools_are_found(fleet: list[str]) -> None:
    with altered(fleet[0], ('"id":"tiny"', '"id":"llama"'), ('"id": "tiny"', '"id": "llama"')) as other:
        differ = rules(look(settings(other, fleet[1])))
        strayed = rules(look(settings(other, fleet[1], models=["ti*"])))
        served = rules(look(settings(other, fleet[1], learn_models=True)))

    assert differ == {"models_differ": "pool tiny: its engines serve llama; tiny"}
    assert strayed == {"model_unrouted": "engines serve llama, which no pool names"}
    assert served == {}


def test_an_engine_faster_than_its_constants_is_found(fleet: list[str]) -> None:
    """The default ones are an L4's, the endpoints H100s."""
    send(fleet[0], 25, words=2_000)
    found = rules(look(settings(*fleet)))
    nearest = rules(look(settings(*fleet, strategy={"name": "prefix_cache", "engine": "h100-llama8b-bf16"})))

    assert found.keys() == {"engine_faster"}
    assert "a token takes 0.19 ms by l4-llama8b-fp8" in found["engine_faster"]
    assert nearest == {}


def test_requests_that_go_around_the_service_are_found(fleet: list[str], service: Service) -> None:
    service.apply([pool(*fleet, strategy={"name": "prefix_hash"})])
    sender = Thread(target=send, args=(fleet[1], 40))
    sender.start()
    found = rules(look(url=service.admin_url, window_s=1.0))
    sender.join()

    assert found.keys() == {"strangers"}


def test_an_endpoint_that_is_left_out_is_told_with_its_reason(fleet: list[str], service: Service) -> None:
    [gone] = free_ports(1)
    address = f"127.0.0.1:{gone}"
    probe = {"interval_s": 0.1, "timeout_s": 1}
    service.apply([pool(fleet[0], address, strategy={"name": "prefix_hash"}, probe=probe)])
    wait_until(lambda: "unhealthy" in str(service.pools()))
    one = rules(look(url=service.admin_url))
    service.config.with_name("none.yaml").write_text("[]")
    service.apply([pool(strategy={"name": "prefix_hash"}, endpoints={"file": "none.yaml"})])
    wait_until(lambda: not service.pools()[0]["endpoints"])
    none = rules(look(url=service.admin_url))

    assert one.keys() == {"unhealthy"}
    assert f"{address} is unhealthy; its health: Connection refused" in one["unhealthy"]
    assert none == {"no_endpoint": "pool tiny: none of 0 endpoints is ready; its list has no fault"}


def test_a_refused_file_and_another_than_the_service_has_are_found(
    fleet: list[str], service: Service
) -> None:
    service.apply([pool(*fleet, strategy={"name": "prefix_hash"})])
    other = rules(look(settings(fleet[0], strategy={"name": "prefix_hash"}), service.admin_url))
    service.write("pools: 5")
    wait_until(lambda: service.metric("extproc_config_refused"))
    refused = rules(look(url=service.admin_url))

    assert other.keys() == {"config_differs"}
    assert refused.keys() == {"config_refused"}
