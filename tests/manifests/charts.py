"""What helm makes of the chart. Its library is Go's, so it runs in a process of its own."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.manifests.rendering import MANIFESTS, Object

CHART = MANIFESTS.parent / "charts" / "extproc-router"
_SCRIPT = """
import json, sys, helm_python as helm
chart, task, values, word = helm.Chart.load(sys.argv[1]), *sys.argv[2:]
values = helm.parse_set_string(values)
if task == "lint":
    result = helm.lint(sys.argv[1], values, strict=True)
elif task == "package":
    result = helm.package(sys.argv[1], destination=word)
else:
    chart.validate_schema(values)
    result = chart.render(values, name=word, namespace="default")
json.dump(result, sys.stdout)
"""


class HelmRefusal(Exception):
    """What helm says of values that it does not take."""


@cache
def run_helm(task: str, values: str, word: str) -> Any:
    """Does `lint`, `package` into a folder, or `render` of a release; values are as `--set` takes them."""
    command = [sys.executable, "-c", _SCRIPT, str(CHART), task, values, word]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        raise HelmRefusal(result.stderr)
    return json.loads(result.stdout)


def chart_objects(values: str, release: str = "vllm") -> list[Object]:
    """Returns the objects of a release in the namespace `default`."""
    texts = [
        text for name, text in run_helm("render", values, release).items() if Path(name).suffix == ".yaml"
    ]
    return [item for text in texts for item in yaml.load_all(text, yaml.CSafeLoader) if item]
