"""What a release consists of: versions that agree, workflows whose commands are there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from extproc import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_every_file_says_the_same_version() -> None:
    manifests = "".join(path.read_text() for path in (ROOT / "manifests").rglob("*.yaml"))
    tags = re.findall(
        r"(?:image: extproc-router:|name: extproc-router\n +newTag: )(\S+)", manifests
    )
    chart = yaml.safe_load((ROOT / "charts/extproc-router/Chart.yaml").read_text())
    make = ["make", "--no-print-directory", "--silent", "-C", str(ROOT), "version", "notes"]
    version, *notes = subprocess.check_output(make, text=True).splitlines()

    assert {*tags, chart["version"], chart["appVersion"], version} == {__version__}
    assert len(tags) >= 3
    assert any(line.startswith("### ") for line in notes)


def test_workflows_are_workflows_and_run_what_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    validate = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    jobs: list[Any] = [
        job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()
    ]
    steps = [step for job in jobs for step in job.get("steps", [])]
    lines = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    made = {word for line in lines for word in re.findall(r"\bmake (?:-s )?([a-z-]+)", line)}

    subprocess.run([*validate, *WORKFLOWS], check=True)
    assert {"wheel", "chart", "sbom", "image-push", "sign"} <= made <= targets
    assert all((ROOT / line).stat().st_mode & 0o100 for line in lines if line.startswith("."))
    assert all(
        re.search(r"@v\d+$|^\./", each["uses"]) for each in (*steps, *jobs) if "uses" in each
    )
    assert all("permissions" in job for job in jobs)


def test_a_job_on_the_runner_itself_must_run_the_composed_stack() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    running = [job for job in jobs.values() if {"run": "make compose-test"} in job["steps"]]
    shown = subprocess.check_output(["make", "-n", "-C", str(ROOT), "compose-test"], text=True)

    assert ["container" in job for job in running] == [False]
    assert "COMPOSE=required" in shown
