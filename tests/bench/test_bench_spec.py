"""The spec file: its spellings, its units, and how faults are reported."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from extproc.bench.commands import bench
from extproc.bench.experiments.run import check_target
from extproc.bench.load.registry import build_registry
from extproc.bench.report.outputs import OutputError
from extproc.bench.spec.presets import PRESETS
from extproc.bench.spec.section import parse_duration, parse_rate
from extproc.bench.spec.traffic import Distribution, TrafficShape
from extproc.bench.spec.tree import Spec, parse_spec, read_spec
from extproc.errors import SettingsError
from tests.bench.manual import blocks
from tests.tables import table

RESOURCE = (
    (Path(__file__).parent / "data/proposed.yaml")
    .read_text()
    .replace(", req-rate: 20 qps, after: 5m", "")
)


def test_proposed_resource_is_read_as_it_is() -> None:
    spec = parse_spec(RESOURCE)

    traffic = spec.traffic
    assert (spec.name, spec.base_url) == ("llama3-405b-2024-07-01", "http://llm-1.svc.local:8000")
    assert (traffic.req_rate, traffic.total_prompts, traffic.dataset.name) == (
        10.0,
        1000,
        "share-gpt",
    )
    assert traffic.input_length == Distribution(value=1024)
    assert traffic.traffic_spike is not None
    assert traffic.traffic_spike.burst == 600.0
    # Its length is not in the spec: then the plan and the verdict say so.
    assert traffic.traffic_spike.covers(100.0)
    # Underscores mean the same as dashes.
    other = parse_spec(RESOURCE.replace("-", "_").replace("share_gpt", "share-gpt")).traffic
    assert other == traffic.model_copy(update={"model_type": "instruction_tuned_llm"})
    with pytest.raises(SettingsError, match=r"model-type: .*diffusion models are not supported"):
        parse_spec(RESOURCE.replace("instruction-tuned-llm", "diffusion"))
    with pytest.raises(SettingsError, match=r"model-type: .*'banana' is not known"):
        parse_spec(RESOURCE.replace("instruction-tuned-llm", "banana"))


def test_every_fault_is_told_with_its_place() -> None:
    text = (
        "performance: {traffic-shape: {req-rate: ten, total-prompts: 0, dataset: random, speed: 1}}"
    )
    with pytest.raises(SettingsError) as caught:
        parse_spec(text)

    told = str(caught.value)
    for place in (
        "endpoint",
        "traffic-shape.req-rate",
        "traffic-shape.total-prompts",
        "traffic-shape.speed",
    ):
        assert place in told


def test_durations_and_rates_read_their_unit() -> None:
    durations = {"10m": 600, "250ms": 0.25, "1.5 s": 1.5, "2h": 7200, "3": 3}
    rates = {"10 qps": 10, "600/m": 10, "5req/s": 5, "inf": math.inf, ".5": 0.5}

    assert {text: parse_duration(text) for text in durations} == durations
    assert {text: parse_rate(text) for text in rates} == rates
    for text in ("", "10 apples", "-3s", "1e3"):
        with pytest.raises(ValueError, match="is not a"):
            parse_duration(text)
        with pytest.raises(ValueError, match="is not a"):
            parse_rate(text)


REFUSED = yaml.safe_load((Path(__file__).parent / "data/refused.yaml").read_text())


@table(("fields", "fault"), REFUSED["meaningless"])
def test_traffic_that_means_nothing_is_refused(fields: dict[str, object], fault: str) -> None:
    given = {"req-rate": 1, "duration": 60, **fields}
    with pytest.raises(ValueError, match=fault):
        TrafficShape.model_validate(
            {name: value for name, value in given.items() if value is not None}
        )


@table(
    ("address", "port", "expected"),
    [
        ("127.0.0.1:8000", 8000, "http://127.0.0.1:8000"),
        ("http://[::1]:8000/openai/", 8000, "http://[::1]:8000/openai"),
        ("https://api.example.com/openai/v1/", None, "https://api.example.com/openai"),
    ],
)
def test_endpoint_may_be_a_url_and_its_port_said_twice(
    address: str, port: int | None, expected: str
) -> None:
    tree = {"endpoint": address, "performance": {"traffic-shape": {"req-rate": 1, "duration": 1}}}

    assert Spec.model_validate(tree | ({"port": port} if port else {})).base_url == expected


async def test_endpoint_with_the_path_of_an_api_is_refused_with_what_to_leave_out() -> None:
    traffic = {"req-rate": 1, "duration": 1}
    tree = {"endpoint": "http://x/v1/chat/completions", "performance": {"traffic-shape": traffic}}
    with pytest.raises(SettingsError, match="leave the path out"):
        await check_target(Spec.model_validate(tree), build_registry())


@table(
    ("text", "fault"),
    [
        ("endpoint: 127.0.0.1:8000\nport: 9000", "endpoint has port 8000, port says 9000"),
        ("endpoint: 127.0.0.1:99999", "Port out of range"),
        ("endpoint: ''", "neither host, host:port nor"),
        ("endpoint: x\nlimits: {errors: 5}", "limits.errors: must be less than"),
        ("metadata: 5\nspec: {endpoint: 5}", "endpoint: expected a text"),
        ("[1, 2]", "give fields, such as"),
        ("just words", "give fields, such as"),
        ("{", "not YAML"),
    ],
)
def test_messages_name_the_fault_and_no_class_of_exception(text: str, fault: str) -> None:
    traffic = "\nperformance: {traffic-shape: {req-rate: 1, duration: 1}}"
    is_mapping = text.startswith(("endpoint", "metadata"))
    with pytest.raises(SettingsError) as caught:
        parse_spec(text + traffic if is_mapping else text)

    told = str(caught.value)
    assert fault in told
    for noise in ("Value error", "pydantic", "http://errors", "https://", "type="):
        assert noise not in told


def test_file_that_is_no_text_is_told_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\x7fELF\xff\xfe")

    with pytest.raises(SettingsError, match=r"spec\.yaml:1: not UTF-8"):
        read_spec(path)
    with pytest.raises(SettingsError, match="No such file"):
        read_spec(tmp_path / "none.yaml")


def test_preset_gives_way_to_what_the_section_says() -> None:
    def read(preset: str, **fields: object) -> TrafficShape:
        return TrafficShape.model_validate({"preset": preset, **fields})

    short = read("summarization", **{"req-rate": 1, "duration": 5, "max-output-length": 7})
    own, opened = read("kubeai-k6"), read("kubeai-k6", **{"req-rate": 5})
    closed = read("kubeai-8xl4-laptop", vus=8)

    assert short.dataset.name == "random"
    assert short.input_length is not None
    assert short.max_output_length == Distribution(value=7)
    assert read("kubeai-8xl4", **{"max-concurrency": 800}).is_closed
    assert TrafficShape(max_concurrency=8, duration=1).is_closed
    assert not TrafficShape(req_rate=200, max_concurrency=1600, total_prompts=8000).is_closed
    assert (own.vus, own.req_rate) == (320, None)
    assert (opened.vus, opened.req_rate) == (None, 5)
    assert (closed.vus, closed.req_rate, closed.max_concurrency) == (8, None, None)
    assert closed.arrivals == "constant"


def test_limit_that_no_answer_can_miss_is_refused() -> None:
    def read(slo: dict[str, float]) -> Spec:
        performance = {"traffic-shape": {"req-rate": 1, "duration": 1}, "slo": slo}
        tree = {"endpoint": "127.0.0.1:1", "target": {"stream": False}, "performance": performance}
        return Spec.model_validate(tree)

    assert read({"e2e-ms": 500}).target.is_streaming is read({}).target.is_streaming is False
    with pytest.raises(ValueError, match="slo: ttft-ms can only be seen of streamed answers"):
        read({"ttft-ms": 500})


def invoke_plan(*arguments: str) -> str:
    done = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(invoke_plan("schema"))
    return printed


def uncomment(text: str) -> str:
    """Every field that is commented out, taken in; what is a choice against another field stays out."""
    skipped = (
        "port:",
        "max-concurrency:",
        "shape:",
        "traffic-spike:",
        "input-length:",
        "total-prompts:",
    )
    lines = []
    for line in text.splitlines():
        head, sharp, rest = line.partition("# ")
        is_field = (
            sharp and not head.strip() and rest.split(" ")[0].endswith(":") and rest[0].islower()
        )
        lines.append(
            head + rest if is_field and not rest.startswith((*skipped, "plugins:")) else line
        )
    return "\n".join(lines)


def test_template_shows_every_section_and_can_be_run_as_it_is_and_with_its_comments_taken_in() -> (
    None
):
    text = invoke_plan("init")
    whole = parse_spec(uncomment(text))

    assert {
        parse_spec(invoke_plan("init", *option)).traffic.req_rate
        for option in ([], ["--quick"], ["--ab"])
    } == {4, 8}
    assert (whole.stack.accelerator, whole.labels) == ("nvidia-l4", {"cluster": "eu-1"})
    assert [
        field.alias for field in Spec.model_fields.values() if f"{field.alias}:" not in text
    ] == []


def test_init_writes_a_new_file_and_leaves_an_old_one_alone(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    invoke_plan("init", str(file))

    assert file.read_text() == invoke_plan("init")
    with pytest.raises(OutputError, match="File exists"):
        invoke_plan("init", str(file))


def test_schema_takes_the_manuals_specs_the_template_and_short_and_long_forms(
    schema: dict[str, Any],
) -> None:
    for text in (*blocks("yaml"), uncomment(invoke_plan("init"))):
        jsonschema.validate(yaml.safe_load(text), schema)
    for preset in PRESETS:
        traffic = {"preset": preset, "req-rate": "inf", "max-output-length": {"value": 5}}
        jsonschema.validate({"endpoint": "a", "performance": {"traffic-shape": traffic}}, schema)


@pytest.mark.parametrize("wrong", REFUSED["schema"])
def test_schema_refuses_what_the_model_refuses(
    schema: dict[str, Any], wrong: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)
