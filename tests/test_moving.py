"""Who moves here from another router finds each of its fields and flags in docs/how-to/from-….md."""

import re
from fnmatch import fnmatch
from pathlib import Path

import click

from extproc.router.settings.picker_flags import WITHOUT_EFFECT, picker_flags
from tests.tables import table

DOCS = Path(__file__).parents[1] / "docs" / "how-to"
# Of KubeAI's Model, kubeai.org/v1, as of 2026 (substratusai/kubeai, api/k8s/v1).
KUBEAI = [
    *(
        "url",
        "adapters[].name",
        "features",
        "engine",
        "resourceProfile",
        "cacheProfile",
        "image",
        "args",
    ),
    *("env", "envFrom", "replicas", "minReplicas", "maxReplicas", "autoscalingDisabled"),
    *("targetRequests", "files"),
    *(
        "env",
        "scaleDownDelaySeconds",
        "owner",
        "priorityClassName",
        "loadBalancing.strategy: PrefixHash",
    ),
    *("prefixHash.meanLoadFactor", "prefixHash.replication", "prefixHash.prefixCharLength"),
    *("loadBalancing.strategy: LeastLoad", "status.replicas", "status.cache"),
]


@table("field", KUBEAI)
def test_every_field_of_kubeais_model_has_its_row(field: str) -> None:
    cells = re.findall(r"^\| (.*?) \|", (DOCS / "from-kubeai.md").read_text(), re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]

    assert field in {re.sub(r": \d+$", "", name) for name in named}


@picker_flags
@click.command()
def command() -> None: ...


def test_every_flag_that_a_chart_may_give_is_reported() -> None:
    flags = [option for parameter in command.params for option in parameter.opts]
    told = re.findall(r"`(--?[\w*-]+)", (DOCS / "from-llm-d.md").read_text())

    assert len(flags) > len(WITHOUT_EFFECT)
    assert [flag for flag in flags if not any(fnmatch(flag, pattern) for pattern in told)] == []
