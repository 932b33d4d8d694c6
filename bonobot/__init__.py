"""Bonobot: AI agents and the MCP servers they use, governed in one place.

The version: the latest release that `CHANGELOG.md` names, which the package is built with.
"""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# As `[tool.hatch.version]` in pyproject.toml has it.
RELEASE = re.compile(r"^## \[(?P<version>\d+\.\d+\.\d+)\]", re.MULTILINE)
_CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def read_version() -> str:
    """Return it: from the file in a checkout, from the package's metadata where it is installed."""
    try:
        found = RELEASE.search(_CHANGELOG.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = None
    if found:
        return found["version"]
    try:
        return version("bonobot")
    except PackageNotFoundError:
        return "0"


__version__ = read_version()


__all__ = ["__version__"]
