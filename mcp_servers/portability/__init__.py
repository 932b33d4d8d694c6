"""Move servers in and out: read what other clients write, and show what would come of it.

Reading touches no row and no network. What becomes of the entries is decided where they are added.
"""

from mcp_servers.portability.entries import Entry, Parameter
from mcp_servers.portability.parsing import parse

__all__ = ["Entry", "Parameter", "parse"]
