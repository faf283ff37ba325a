"""Start pages that need no cluster, walked word for word; and the site. tests/manifests walks the others."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
START = ROOT / "docs" / "start"

pytestmark = [
    pytest.mark.xdist_group("docs"),  # one stack for all
    pytest.mark.envoy,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root"),
]


def shell_blocks(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", (START / page).read_text(), re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Laptop:
    """A checkout in which `make run` goes, in a network that has the ports for itself."""

    folder: Path
    running: subprocess.Popen[bytes]

    def run(self, block: str, *statuses: int) -> str:
        """Runs a block of a page as it stands there."""
        words = ["nsenter", f"--net=/proc/{self.running.pid}/ns/net", "bash", "-c", block]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode in (statuses or (0,)), done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    folder = tmp_path_factory.mktemp("checkout")
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "install.sh",
        "extproc",
        "manifests",
    ):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "envoy", folder / "envoy")
    # What `make run` installs first is here already: tests/slow/install does that.
    (folder / ".venv-run" / "bin").mkdir(parents=True)
    for name, module in (("python", ""), ("extproc", " -m extproc")):
        path = folder / ".venv-run" / "bin" / name
        path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable}{module} "$@"\n')
        path.chmod(0o755)
    (folder / ".venv-run" / ".ready").touch()
    [command] = [block for block in shell_blocks("laptop.md") if block.startswith("make ")]
    script = f"ip link set lo up && exec {command}"
    with (folder / "run.log").open("wb") as log:
        running = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "Ctrl-C stops everything" in (folder / "run.log").read_text())
        yield Laptop(folder, running)
    finally:
        os.killpg(running.pid, signal.SIGINT)
        running.wait()


def test_the_first_page_is_walked(laptop: Laptop) -> None:
    [start, ask, explain] = shell_blocks("laptop.md")
    asked = laptop.run(ask)
    explained = laptop.run(explain)
    served = re.findall(r"^x-served-by: (\S+)", asked, re.MULTILINE)
    cached = [int(tokens) for tokens in re.findall(r'"cached_tokens": ?(\d+)', asked)]

    assert start == "make run\n"
    assert len(served) == 2
    assert len({*served}) == 1
    assert cached[0] == 0 < cached[1]
    assert served[0] in explained


@pytest.mark.timeout(1200)
def test_two_strategies_are_compared(laptop: Laptop) -> None:
    """Exit status 3 says that this machine was too busy to measure; the walk is the same."""
    [simulate, start, plan, compare] = shell_blocks("benchmark.md")
    settings = (laptop.folder / "envoy" / "extproc.yaml").read_text()

    assert "hit rate" in laptop.run(simulate)
    assert start == "make run\n"
    assert "possible" in laptop.run(plan)
    assert re.search("prefix_cache sends the first token|not comparable", laptop.run(compare, 0, 3))
    made = {path.name for path in (laptop.folder / "comparison").iterdir()}
    arms = {f"{arm}-{repeat}" for arm in ("least_load", "prefix_cache") for repeat in (1, 2, 3)}
    assert made == {"ab.html", "ab.json", "ab.md", *arms}
    assert (laptop.folder / "envoy" / "extproc.yaml").read_text() == settings


def test_no_other_start_page_is_left_out() -> None:
    assert {page.name for page in START.glob("*.md")} == {
        *("laptop.md", "benchmark.md"),
        *("kubernetes.md", "envoy-gateway.md"),  # tests/manifests/test_manifests_start.py
        "shadow.md",  # its blocks: tests/slow/stack/test_stack_shadow.py
    }


@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    pages = [
        page.relative_to(ROOT / "docs").with_suffix(".html")
        for page in (ROOT / "docs").rglob("*.md")
    ]

    assert "No issues found" in done.stdout + done.stderr
    assert [str(page) for page in pages if not (site / page).exists()] == []
    assert not list(site.rglob("*.py"))
