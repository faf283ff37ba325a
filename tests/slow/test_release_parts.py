"""The wheel and the image of a release: built, installed, run."""

import json
import subprocess
from pathlib import Path

import pytest

from extproc import __version__
from tests.slow.compose.docker import ROOT, build, docker, engine

pytestmark = pytest.mark.timeout(900)
SAID = f"extproc, version {__version__}\n"


def test_the_wheel_alone_runs_in_a_new_environment(tmp_path: Path) -> None:
    environment = {"WHEELS": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    subprocess.run([ROOT / "install.sh", tmp_path / "new", ""], check=True, env=environment)

    assert subprocess.check_output([tmp_path / "new/bin/extproc", "--version"], text=True) == SAID
    assert [path.name for path in tmp_path.glob("*.whl")] == [
        f"extproc_router-{__version__}-py3-none-any.whl"
    ]


@pytest.mark.xdist_group("compose")
def test_the_image_is_nobodys_and_writes_nothing() -> None:
    name = "extproc-router:compose"
    with engine():
        build()
        [image] = json.loads(docker("image", "inspect", name).stdout)
        limits = [
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--network",
            "none",
        ]
        said, written = [docker("run", "--rm", *limits, name, word).stdout for word in ("--version", "init")]
    labels = {label.removeprefix("org.opencontainers.image.") for label in image["Config"]["Labels"]}

    assert image["Config"]["User"] == "65532:65532"
    assert {"title", "description", "licenses", "version", "revision"} <= labels
    assert (said, "pools:" in written) == (SAID, True)
