"""Generate the table of features in the page of rerankers, docs/reference/rerankers.md."""

from __future__ import annotations

import re
from pathlib import Path

from rescorer.reranking.features import describe_features

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "rerankers.md"
BEGIN, END = "<!-- features: written by make docs -->", "<!-- end of features -->"


def features_page() -> str:
    """Return the page with its table as the code has it: one row per kind of feature."""
    rows = [f"| `{name}` | {unit} | {text} | {cost} |" for name, unit, text, cost in describe_features()]
    table = "\n".join(["| feature | unit | value | time |", "|---|---|---|---|", *rows])
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text, flags=re.DOTALL)
