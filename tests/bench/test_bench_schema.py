import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from extproc.bench.report import report
from tests.tables import table

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "benchmark-report.schema.json"
# What the first version wrote: whoever kept it must be able to read and compare it.
EARLIER = Path(__file__).parent / "data" / "report-1.json"


def test_published_schema_is_that_of_the_reports() -> None:
    """A field that changes its meaning or goes needs a new number in `report.SCHEMA`."""
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(report.json_schema()))


def test_report_of_an_earlier_version_follows_the_schema_and_is_read() -> None:
    """New fields have defaults; were one to go or to be needed, the number in `report.SCHEMA` would rise."""
    text = EARLIER.read_bytes()
    said = report.decode_report(text)

    jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))
    assert (said.name, said.whole.counts.completed, said.server_hit_rate) == ("benchmark", 100, 0.6)
    assert said.steady.latency_ms["ttft"].mean == pytest.approx(500)
    assert said.phases == ()


def spoil(tree: Any, path: list[str], value: object) -> Any:
    spoilt = deepcopy(tree)
    place = spoilt
    for name in path[:-1]:
        place = place[name]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return spoilt


@table(
    ("path", "value"),
    [
        (["verdict"], None),
        (["whole", "counts", "failures"], None),
        (["seed"], "seven"),
        (["whole", "latency_ms", "ttft", "p99"], "fast"),
        (["caches"], {}),
    ],
)
def test_what_the_schema_refuses_is_not_read_either(path: list[str], value: object) -> None:
    spoilt = spoil(json.loads(EARLIER.read_text()), path, value)

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoilt, json.loads(SCHEMA.read_text()))
    with pytest.raises(report.ReportError):
        report.decode_report(json.dumps(spoilt).encode())
