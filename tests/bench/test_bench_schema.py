import json
from pathlib import Path

from extproc.bench.report import report

SCHEMA = Path(__file__).parents[2] / "docs" / "benchmark-report.schema.json"


def test_published_schema_is_that_of_the_reports() -> None:
    """A field that changes its meaning or goes needs a new number in `report.SCHEMA`."""
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(report.json_schema()))
