import json
from pathlib import Path

import jsonschema
import pytest

from extproc.bench.report import report

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "benchmark-report.schema.json"
# What the first version wrote: whoever kept it must be able to read and compare it.
EARLIER = Path(__file__).parent / "data" / "report-1.json"


def test_published_schema_is_that_of_the_reports_and_an_earlier_one_is_read() -> None:
    """A field that changes its meaning or goes needs a new number in `report.SCHEMA`."""
    schema, text = json.loads(SCHEMA.read_text()), EARLIER.read_bytes()
    said = report.decode_report(text)

    assert schema == json.loads(json.dumps(report.json_schema()))
    jsonschema.validate(json.loads(text), schema)
    assert (said.name, said.whole.counts.completed, said.server_hit_rate) == ("benchmark", 100, 0.6)
    assert said.steady.latency_ms["ttft"].mean == pytest.approx(500)
    assert said.phases == ()
