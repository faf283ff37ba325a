"""The objects that a run is made of."""

from extproc.operator.objects import Object, Run, list_objects
from extproc.operator.resource import parse_benchmark
from tests.operator.world import NOON, SPEC, World


def objects_of(**spec: object) -> list[Object]:
    benchmark = parse_benchmark(World(spec={**SPEC, **spec}).body())
    return list(list_objects(Run(benchmark, f"b-{benchmark.digest}", NOON), "image:1", NOON))


EVERYTHING: Object = {
    "workers": 2,
    "files": {"claim": "data"},
    "results": {"size": "2Gi", "storage-class": "fast"},
    "pods": {
        "cpu": "2",
        "env-secret": "keys",
        "pull-secret": "registry",
        "node-selector": {"pool": "load"},
        "tolerations": [{"key": "load", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
