"""Surfaces: what can be done, and by which name in the admin, over REST and on the command line.

This is the table to add a row to when something new can be done. A test reads what there really is
(addresses and actions of the admin, operations of REST, verbs of the command line) and fails where
one of them is in no row, where a row names what isn't there, and where a feature lacks one of the
three without saying why. `python -m docs.making.surfaces` writes `docs/surfaces.md` from it.

Names: `server.add` is the address of the admin called `mcp_servers_server_add` (`.list`, `.add`,
`.change`, `.delete` are Django's own four), `server!test_chosen` an action of its list;
`create_server` is an operation of `/api/schema`; `mcp add` is a verb of `bonobot`.
"""

from docs.making.surface_table import agents, organization, servers
from docs.making.surface_table.types import Area, Feature

AREAS: tuple[Area, ...] = (
    servers.AREA,
    agents.AGENTS_AREA,
    agents.SESSIONS_AREA,
    organization.CONTROL_AREA,
    organization.ORGANIZATION_AREA,
    organization.INSTALLATION_AREA,
)
FEATURES: tuple[Feature, ...] = tuple(feature for area in AREAS for feature in area.features)
