"""The version of the rules that definitions are read with: raise it whenever they find otherwise.

Each definition says with which version it was read; one read with an older version is read again in
the background (`mcp_servers.rescanning`).
"""

from typing import Final

RULES: Final = 4
