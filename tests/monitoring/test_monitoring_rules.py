"""The rules: what `promtool` says of them, and that an operator finds what to do."""

import re
from typing import Any

import yaml

from monitoring.generate import ROOT, RULES, stale
from tests.monitoring.rules import alerts, hasten
from tests.tables import table

CASES = RULES.with_suffix(".test.yaml")
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"


def sections() -> dict[str, str]:
    """Returns the runbook's text by heading."""
    _, *parts = re.split(r"^### (.*)\n", RUNBOOK.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_alert_has_cases_in_which_it_fires_and_stays_quiet() -> None:
    checks = [
        check
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for check in case["promql_expr_test"]
    ]
    fired = {
        name
        for check in checks
        for name in re.findall(r'alertname="(\w+)"', str(check["exp_samples"]))
    }

    assert fired == {*alerts()} == {*sections()}
    assert sum(not check["exp_samples"] for check in checks) > len(fired)


@table("name", alerts())
def test_an_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule: dict[str, Any] = alerts()[name]

    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert {*rule["annotations"]} == {"summary", "description", "runbook_url"}
    # GitHub's anchor of a heading of one word.
    assert rule["annotations"]["runbook_url"] == f"docs/how-to/runbook.md#{name.lower()}"
    assert sections()[name].startswith(f"\n*{rule['labels']['severity'].capitalize()}.* ")
    assert len(sections()[name].split()) > 40


def test_the_memory_alert_knows_the_manifests_limit() -> None:
    deployment = yaml.safe_load((ROOT / "manifests" / "base" / "deployment.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]

    assert container["resources"]["limits"]["memory"] == "512Mi"
    assert "> 0.8 * 512 * 1024 * 1024 " in alerts()["ExtprocMemoryNearBound"]["expr"]


def test_what_is_made_is_what_its_source_gives() -> None:
    assert stale() == []


def test_the_quicker_rules_are_the_shipped_ones_but_for_times_and_bounds() -> None:
    shipped, quick = (
        [
            [
                (rule.get("alert"), rule.get("record"), rule.get("annotations"))
                for rule in group["rules"]
            ]
            for group in yaml.safe_load(text)["groups"]
        ]
        for text in (RULES.read_text(), hasten(RULES.read_text()))
    )

    assert quick == shipped
