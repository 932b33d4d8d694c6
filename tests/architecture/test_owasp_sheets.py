"""Each risk of the OWASP sheets names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ((?:MCP|ASI)\d\d) .*\| (`tests/[^|]+`) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/\S+\.py)::(test_\w+)`")
RISKS = [f"{prefix}{number:02}" for prefix in ("MCP", "ASI") for number in range(1, 11)]


def test_each_risk_names_tests_that_exist() -> None:
    rows = ROW.findall((ROOT / "docs" / "owasp.md").read_text(encoding="utf-8"))
    assert [risk for risk, _ in rows] == RISKS, "docs/owasp.md needs one row for each risk"
    named = [(cell, test) for _, cell in rows for test in TEST.findall(cell)]
    unreadable = [cell for _, cell in rows if len(TEST.findall(cell)) != cell.count("::")]
    assert not unreadable, "write tests as `tests/file.py::test_name` in docs/owasp.md"
    missing = [
        f"{path}::{name}"
        for _, (path, name) in named
        if not (ROOT / path).is_file()
        or not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    ]
    assert not missing, "rename or remove them in docs/owasp.md"
