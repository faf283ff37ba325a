"""constraints.txt: every dependency, each version with its hashes, and nothing else."""

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT = (ROOT / "constraints.txt").read_text()
ENTRIES = re.findall(
    r"^([a-z0-9][\w.-]*)==(\S+)([^\n]*)\n((?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)+)",
    TEXT,
    re.MULTILINE,
)


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


def test_every_dependency_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = (PROJECT["dependency-groups"][name] for name in ("dev", "tools", "docs"))
    wanted = [*PROJECT["project"]["dependencies"], *chain(*extras, *groups), "pip", "setuptools"]
    pinned = {name for name, *_ in ENTRIES}

    assert {canonical(one) for one in wanted} - pinned == {"extproc-router"}


def test_every_line_belongs_to_a_version_with_its_hashes() -> None:
    rest = re.sub(
        r"^[a-z0-9][\w.-]*==[^\n]*\n(?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)+",
        "",
        TEXT,
        flags=re.MULTILINE,
    )

    assert rest == ""
    assert "://" not in TEXT


def test_nothing_of_a_gpu_is_drawn_in() -> None:
    assert not {
        name for name, *_ in ENTRIES if name.startswith(("torch", "nvidia", "triton", "vllm"))
    }
