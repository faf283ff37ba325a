"""`make monitoring`: writes into the manifests what is made from rules.yaml and dashboards/.

The PrometheusRule is the rule file in Kubernetes' wrapping, the dashboards are Grafana's JSON.
Neither is edited by hand: `--check` compares them with their source.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from monitoring.dashboards import BOARDS
from monitoring.grafana import render

ROOT: Final = Path(__file__).parent.parent
RULES: Final = ROOT / "monitoring" / "rules.yaml"
COMPONENT: Final = ROOT / "manifests" / "components" / "monitoring"
_MADE: Final = "# Made by `make monitoring` from monitoring/rules.yaml: change that.\n"


def generated() -> dict[Path, str]:
    """Returns the text of every file that is made."""
    made = {
        COMPONENT / "prometheusrule.yaml": _MADE + _dump(wrap(yaml.safe_load(RULES.read_text())))
    }
    return made | {
        COMPONENT / "dashboards" / f"{board.uid}.json": render(board) for board in BOARDS
    }


def wrap(rules: dict[str, Any]) -> dict[str, Any]:
    """Returns the PrometheusRule of a rule file."""
    labels = {"app.kubernetes.io/part-of": "extproc-router"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "extproc", "labels": labels},
        "spec": rules,
    }


def stale() -> list[Path]:
    """Returns the files that are not what they would be made now, and those that nothing makes any more."""
    made = generated()
    there = {*made, *(COMPONENT / "dashboards").glob("*")}
    return sorted(path for path in there if not path.exists() or path.read_text() != made.get(path))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something differs"
    )
    if parser.parse_args().check:
        wrong = [str(path.relative_to(ROOT)) for path in stale()]
        print(
            f"run `make monitoring`: {', '.join(wrong)}"
            if wrong
            else "monitoring is what its source gives"
        )
        return bool(wrong)
    for path in stale():
        path.unlink(missing_ok=True)
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


def _dump(item: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(item, sort_keys=False, width=4_096)
    return text


if __name__ == "__main__":
    sys.exit(main())
