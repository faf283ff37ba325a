"""The spec that `init` writes and the JSON schema that `schema` prints, held against the model."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from extproc.bench.commands import bench
from extproc.bench.report.outputs import OutputError
from extproc.bench.spec.presets import PRESETS
from extproc.bench.spec.tree import Spec, parse_spec
from tests.bench.manual import blocks


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(invoke("schema"))
    return printed


def uncomment(text: str) -> str:
    """Every field that is commented out, taken in; what is a choice against another field stays out."""
    skipped = ("port:", "max-concurrency:", "shape:", "traffic-spike:", "input-length:", "total-prompts:")
    lines = []
    for line in text.splitlines():
        head, sharp, rest = line.partition("# ")
        is_field = sharp and not head.strip() and rest.split(" ")[0].endswith(":") and rest[0].islower()
        lines.append(head + rest if is_field and not rest.startswith((*skipped, "plugins:")) else line)
    return "\n".join(lines)


def test_template_shows_every_section_and_can_be_run_as_it_is_and_with_its_comments_taken_in() -> None:
    text = invoke("init")
    whole = parse_spec(uncomment(text))

    assert {
        parse_spec(invoke("init", *option)).traffic.req_rate for option in ([], ["--quick"], ["--ab"])
    } == {4, 8}
    assert (whole.stack.accelerator, whole.labels) == ("nvidia-l4", {"cluster": "eu-1"})
    assert [field.alias for field in Spec.model_fields.values() if f"{field.alias}:" not in text] == []


def test_init_writes_a_new_file_and_leaves_an_old_one_alone(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    invoke("init", str(file))

    assert file.read_text() == invoke("init")
    with pytest.raises(OutputError, match="File exists"):
        invoke("init", str(file))


def test_schema_takes_the_manuals_specs_the_template_and_short_and_long_forms(schema: dict[str, Any]) -> None:
    for text in (*blocks("yaml"), uncomment(invoke("init"))):
        jsonschema.validate(yaml.safe_load(text), schema)
    for preset in PRESETS:
        traffic = {"preset": preset, "req-rate": "inf", "max-output-length": {"value": 5}}
        jsonschema.validate({"endpoint": "a", "performance": {"traffic-shape": traffic}}, schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "a", "performance": {"traffic-shape": {"req-rate": "many"}}},
        {"endpoint": "a", "performance": {"traffic-shape": {"duration": "10 weeks"}}},
        {"endpoint": "a", "performance": {"traffic-shape": {}}, "no-such-field": 1},
        {"performance": {"traffic-shape": {}}},
        {"endpoint": "a", "performance": {"traffic-shape": {"dataset": {"name": "random", "groups": 3}}}},
        {"endpoint": "a", "performance": {"traffic-shape": {"dataset": {"name": "sharegpt", "zipf": 1}}}},
        {
            "endpoint": "a",
            "performance": {"traffic-shape": {"dataset": {"name": "shared-prefix", "zipf": "a"}}},
        },
    ],
)
def test_schema_refuses_what_the_model_refuses(schema: dict[str, Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)
