"""Bonobot: AI agents and the MCP servers they use, governed in one place.

The version is the latest release in `CHANGELOG.md`, which the package is built with.
"""

import re
from pathlib import Path

# The same pattern as in `[tool.hatch.version]` of pyproject.toml.
RELEASE = re.compile(r"^## \[(?P<version>\d+\.\d+\.\d+)\]", re.MULTILINE)
_CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def read_version() -> str:
    """Return the version, from the changelog in a checkout or from the package's metadata."""
    try:
        match = RELEASE.search(_CHANGELOG.read_text(encoding="utf-8"))
    except FileNotFoundError:
        match = None
    if match:
        return match["version"]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("bonobot")
    except PackageNotFoundError:
        return "0"


__version__ = read_version()


__all__ = ["__version__"]
