from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.bench.commands import bench
from extproc.bench.experiments.plan import ClientHost, plan
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.spec.tree import parse_spec
from tests.bench.manual import DOCS, blocks

FOLDER = Path(__file__).parents[2] / "manifests" / "benchmark"


def load_manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_spec_of_the_job_is_possible_and_asks_the_gateway_that_the_manifests_install() -> None:
    service = yaml.safe_load(
        (FOLDER.parent / "overlays" / "gateway" / "envoy-service.yaml").read_text()
    )
    spec = parse_spec((FOLDER / "benchmark.yaml").read_text())
    host = ClientHost(cores=2, ports=28_000, files=65_536)
    made = plan(spec, build_workload(spec, build_registry()), host, latency_s=5)

    assert (made.faults, made.honesty.prompts) == ((), 8000)
    assert made.honesty.exact_repeats == pytest.approx(0.9, abs=0.01)
    assert made.in_flight == pytest.approx(1000, rel=0.1)
    assert spec.base_url == f"http://{service['metadata']['name']}"
    assert 80 in {port["port"] for port in service["spec"]["ports"]}


def test_job_runs_a_command_that_exists_with_options_that_exist() -> None:
    container = load_manifest("job.yaml")["spec"]["template"]["spec"]["containers"][0]
    name, *_ = [word for word in container["command"] if word not in {"extproc", "bench"}]
    known = {option for parameter in bench.commands[name].params for option in parameter.opts}

    assert container["command"][:2] == ["extproc", "bench"]
    assert {word for word in container["args"] if word.startswith("--")} <= known


def test_job_keeps_its_results_on_a_volume_that_is_claimed() -> None:
    pod = load_manifest("job.yaml")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    output = container["args"][container["args"].index("--output") + 1]

    assert set(mounts.values()) == set(volumes)
    assert (
        volumes[mounts[output]]["persistentVolumeClaim"]["claimName"]
        == load_manifest("results.yaml")["metadata"]["name"]
    )
    generated = load_manifest("kustomization.yaml")["configMapGenerator"][0]
    assert volumes[mounts["/etc/benchmark"]]["configMap"]["name"] == generated["name"]


def test_job_is_hardened() -> None:
    pod = load_manifest("job.yaml")["spec"]["template"]["spec"]
    container = pod["containers"][0]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


LARGE = ClientHost(cores=16, ports=60_000, files=100_000)


@pytest.mark.parametrize("text", blocks("yaml"), ids=range(len(blocks("yaml"))))
def test_every_spec_in_the_manual_can_be_run(text: str) -> None:
    spec = parse_spec(text)

    assert plan(spec, build_workload(spec, build_registry()), LARGE, latency_s=2).faults == ()


def test_every_command_is_in_the_manual() -> None:
    assert {name for name in bench.commands if f"extproc bench {name} " not in DOCS} == set()
