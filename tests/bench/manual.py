"""The code in the docs of the benchmark."""

import re
from pathlib import Path

PAGES = (
    "how-to/benchmark",
    "how-to/compare-strategies",
    "how-to/load-from-several-machines",
    "why/benchmark",
    "why/documents",
)
DOCS = "".join((Path(__file__).parents[2] / "docs" / f"{page}.md").read_text() for page in PAGES)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)
