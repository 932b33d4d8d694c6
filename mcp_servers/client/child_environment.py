"""The environment of a server's process: the inherited and the configured variables."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# All that a child gets besides its configured variables: PATH to find launchers, HOME for their
# caches, the others for user, language, time zone and temporary files.
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
)


def build_environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Return a child's whole environment: `INHERITED_VARIABLES` and the configured ones.

    The folder of Bonobot's own Python is last on PATH.
    """
    env = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    python_folder = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join(filter(None, (env.get("PATH", os.defpath), python_folder)))
    return env | dict(declared)
