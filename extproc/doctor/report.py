"""What the doctor says: findings with the words of advice.yaml, as text or as JSON."""

import json
from importlib.resources import files
from typing import Final

import yaml

from extproc.doctor.checks import CHECKS
from extproc.doctor.evidence import Evidence
from extproc.documents import printable

# The worst first.
_SEVERITIES: Final = ("critical", "warning", "note")


def judge_evidence(evidence: Evidence) -> list[dict[str, str]]:
    """Returns what is wrong, the worst first, each with `rule`, `severity`, `seen`, `why` and `fix`."""
    advice = yaml.safe_load(files("extproc.doctor").joinpath("advice.yaml").read_text("utf-8"))
    found = [
        {"rule": each.rule, "severity": advice[each.rule]["severity"], "seen": printable(each.seen)}
        | {name: advice[each.rule][name].format(value=printable(f"{each.value}")) for name in ("why", "fix")}
        for check in CHECKS
        for each in check(evidence)
    ]
    return sorted(found, key=lambda each: _SEVERITIES.index(each["severity"]))


def write_report(evidence: Evidence, *, as_json: bool) -> tuple[str, int]:
    """Returns the text, and the exit status: 1 if there is more than notes."""
    found = judge_evidence(evidence)
    status = int(any(each["severity"] != "note" for each in found))
    if as_json:
        said = {"findings": found, "looked_at": evidence.looked, "not_looked_at": evidence.unseen}
        return json.dumps(said, indent=2), status
    lines = [
        "{severity:8}  {rule}: {seen}\n     why  {why}\n     fix  {fix}\n".format_map(each) for each in found
    ]
    lines += [] if found else ["Nothing is wrong with what was looked at.\n"]
    lines += [f"looked at      {printable(each)}" for each in evidence.looked]
    lines += [f"not looked at  {printable(each)}" for each in evidence.unseen]
    return "\n".join(lines), status
