"""The code in docs/benchmark.md."""

import re
from pathlib import Path

DOCS = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)
