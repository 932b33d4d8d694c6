"""Each risk of the OWASP sheets names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ((?:MCP|ASI)\d\d) .*\| `(tests/\S+\.py)::(test_\w+)` \|$", re.MULTILINE)
RISKS = [f"{prefix}{number:02}" for prefix in ("MCP", "ASI") for number in range(1, 11)]


def test_each_risk_names_a_test_that_exists() -> None:
    rows = ROW.findall((ROOT / "docs" / "owasp.md").read_text(encoding="utf-8"))
    assert [risk for risk, _, _ in rows] == RISKS
    missing = [
        f"{path}::{name}"
        for _, path, name in rows
        if not (ROOT / path).is_file()
        or not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    ]
    assert missing == []
