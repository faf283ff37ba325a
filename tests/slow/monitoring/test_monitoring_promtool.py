"""What `promtool` says of the rules, of their cases, and of the composed stack's configuration."""

from pathlib import Path

import pytest
import yaml

from monitoring.generate import ROOT, RULES
from tests.monitoring.prometheus import needs_prometheus, promtool

CASES = RULES.with_suffix(".test.yaml")
CONFIG = ROOT / "monitoring" / "prometheus.yaml"


pytestmark = needs_prometheus


@pytest.mark.parametrize(
    "asked", [("check", "rules", RULES), ("test", "rules", CASES), ("check", "config", CONFIG)]
)
def test_promtool_has_nothing_to_say_against_rules_cases_and_configuration(asked: tuple[object, ...]) -> None:
    """Each alert fires where it should and nowhere else."""
    assert promtool(*map(str, asked)) == ""


def test_the_cases_see_a_rule_that_is_wrong(tmp_path: Path) -> None:
    wrong = RULES.read_text().replace('="ready"', '=~"ready|cooling"')
    assert wrong != RULES.read_text()
    (tmp_path / RULES.name).write_text(wrong)
    cases = yaml.safe_load(CASES.read_text())
    cases["tests"] = [
        each for each in cases["tests"] if each["name"] == "a pool without endpoints, of one replica"
    ]
    (tmp_path / CASES.name).write_text(yaml.safe_dump(cases))

    assert "FAILED" in promtool("test", "rules", str(tmp_path / CASES.name))
