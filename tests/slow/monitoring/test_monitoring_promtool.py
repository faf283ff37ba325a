"""What `promtool` says of the rules, of their cases, and of the composed stack's configuration."""

from pathlib import Path

import pytest
import yaml

from monitoring.generate import ROOT, RULES
from tests.monitoring.prometheus import needs_prometheus, promtool

CASES = RULES.with_suffix(".test.yaml")
CONFIG = ROOT / "monitoring" / "prometheus.yaml"


@needs_prometheus
def test_prometheus_takes_the_rules() -> None:
    assert promtool("check", "rules", str(RULES)) == ""


@needs_prometheus
def test_each_alert_fires_where_it_should_and_nowhere_else() -> None:
    assert promtool("test", "rules", str(CASES)) == ""


@needs_prometheus
@pytest.mark.parametrize(
    ("old", "new", "case"),
    [
        ("> 300", "> 1000", "a list that nobody confirms"),
        ("objectives_age_seconds > 300", "objectives_age_seconds > 1000", "objectives that nobody confirms"),
        ('="ready"', '=~"ready|cooling"', "a pool without endpoints, of one replica"),
    ],
)
def test_the_cases_see_a_rule_that_is_wrong(tmp_path: Path, old: str, new: str, case: str) -> None:
    text = RULES.read_text()
    assert old in text
    (tmp_path / RULES.name).write_text(text.replace(old, new))
    cases = yaml.safe_load(CASES.read_text())
    cases["tests"] = [each for each in cases["tests"] if each["name"] == case]
    (tmp_path / CASES.name).write_text(yaml.safe_dump(cases))

    assert "FAILED" in promtool("test", "rules", str(tmp_path / CASES.name))


@needs_prometheus
def test_prometheus_takes_its_configuration() -> None:
    assert promtool("check", "config", str(CONFIG)) == ""
