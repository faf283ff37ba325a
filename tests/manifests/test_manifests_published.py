"""KubeAI's published benchmark, as a folder to apply: its flags, its loads, its Service."""

from importlib.resources import files
from typing import Any

from extproc.bench.experiments.sweep import list_tasks
from extproc.operator.resource import Benchmark, parse_benchmark
from tests.manifests.rendering import Object, pods, reference_names, selects
from tests.tables import table

FOLDER = "benchmark/kubeai-8xl4"
SWEEPS = ["kubeai-direct", "kubeai-strategies"]
# Of the Model in the published report; an option's name has grown since.
FLAGS = {
    *("--enable-prefix-caching", "--max-model-len=16384", "--max-num-batched-tokens=16384"),
    *("--gpu-memory-utilization=0.95", "--kv-cache-dtype=fp8"),
    "--model=neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8",
}


def benchmark(name: str) -> Benchmark:
    body: Object = reference_names(FOLDER, "Benchmark", name)
    metadata: Any = body["metadata"] | {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return parse_benchmark(body | {"metadata": metadata})


def test_vllm_is_deployed_as_it_was_and_the_native_service_leads_to_it_without_the_router() -> None:
    [container] = pods(FOLDER)["vllm"]["containers"]
    deployment = reference_names(FOLDER, "Deployment", "vllm")["spec"]
    service = reference_names(FOLDER, "Service", "vllm-direct")["spec"]

    assert set(container["args"]) >= FLAGS
    for name in SWEEPS:
        assert f"--served-model-name={benchmark(name).spec.target.model}" in container["args"]
    assert deployment["replicas"] == 8
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "clusterIP" not in service
    assert selects(service["selector"], deployment["template"]["metadata"]["labels"])
    assert benchmark("kubeai-direct").spec.endpoint == "http://vllm-direct"


@table("name", SWEEPS)
def test_the_sweeps_have_the_published_loads(name: str) -> None:
    rows = files("extproc.simulator.fleet").joinpath("kubeai-8xl4.csv").read_text().splitlines()[1:]
    published = {tuple(map(int, row.split(",")[:2])) for row in rows}
    asked = benchmark(name)
    tasks = list_tasks(asked.spec)

    loads = {
        (traffic.max_concurrency, traffic.req_rate)
        for traffic in (task.spec.performance.traffic_shape for task in tasks)
    }
    assert asked.operation.mode == "sweep"
    assert loads == published
    assert len(tasks) == len(published) * len(asked.spec.ab.arms) * 3
