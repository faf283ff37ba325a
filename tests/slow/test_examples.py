"""The commands of examples/, typed as its pages have them; what they print is compared."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.process import Process

ROOT = Path(__file__).parents[2]
# Commands of these want a cluster (tests/manifests has what they render), or Docker (tests/slow/compose).
RUN_ELSEWHERE = {"helm-values", "keda", "compose"}
TYPED = {path.name for path in ROOT.glob("examples/*/") if path.is_dir()} - RUN_ELSEWHERE
PATHS = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
ROOTS = pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(600), ROOTS]
# Envoy has all addresses; the routers know how their endpoints are, and get each other's letters.
READY = r"""
hosts=$(curl -s 127.0.0.1:9901/clusters); pools=$(curl -s 127.0.0.1:9090/pools 127.0.0.1:9091/pools)
for port in 9002 8001 8004; do grep -q :$port::health_flags::healthy <<<$hosts || exit; done
grep -qE '"unknown"|"unhealthy"|"prompt": ?0' <<<$pools && exit
curl -sf 127.0.0.1:9090/readyz >/dev/null && echo ready
"""


@pytest.mark.parametrize("name", sorted(TYPED))
def test_commands_print_what_the_page_shows(name: str, tmp_path: Path) -> None:
    """Exit status 3 is a comparison's on a machine too busy to measure."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for shared in ("envoy", "manifests"):
        (tmp_path / shared).symlink_to(ROOT / shared)
    page = (tmp_path / "examples" / name / "README.md").read_text()
    blocks = re.findall(r"(?ms)^```(sh|text)\n(.*?)^```", page)
    started = blocks.pop(0)[1] if blocks[0][1].endswith("&\n") else ""
    ready = READY if "envoy" in started else "curl -s 127.0.0.1:8100 >&2 && echo ready || true"
    script = f"cd {tmp_path}; ip link set lo up; {started} sleep infinity"
    process = Process(
        "walk", ["unshare", "-npf", "--kill-child", "bash", "-c", script], tmp_path, PATHS
    )

    def run(block: str) -> str:
        words, env = (
            ["nsenter", f"--net=/proc/{process.pid}/ns/net", "bash", "-c", block],
            os.environ | PATHS,
        )
        done = subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode in {0, 1, 3}, (block, done.stdout, done.stderr)
        return done.stdout + done.stderr

    try:
        process.start()
        process.wait_until(lambda: not started or "ready" in run(ready))
        for kind, block in blocks:
            if kind == "sh":
                printed = run(block)
            else:
                lines = [re.escape(line).replace("…", ".*") for line in block.splitlines()]
                found = re.search("\n(?:.*\n)*?".join(lines), printed)
                assert found or "not comparable" in printed, (block, printed)
        assert "text" in dict(blocks)
    finally:
        process.kill()  # with the first of its processes all others end
