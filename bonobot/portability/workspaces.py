"""What a configuration file says of an agent's built-in tools and workspace (FEATURES E1)."""

from typing import Any

from agents.governance.kits import USUAL_FILES, USUAL_MIB, check_kits
from agents.models import Agent
from bonobot.lib.problems import Invalid
from bonobot.portability.members import Members

TOOLS = ("builtin_tools", "workspace")


def tools_of(agent: Members) -> dict[str, Any]:
    """Return an agent's kits and workspace as its specification has them; notes what is wrong."""
    found: dict[str, Any] = {}
    if (kits := agent.plain("builtin_tools")) is not None:
        try:
            found["builtin_tools"] = check_kits(kits)
        except Invalid as problem:
            agent.refuse("builtin_tools", problem.code, f"{problem} {problem.remedy}")
    if (place := agent.inner("workspace")) is not None:
        place.refuse_others(("folder", "mib", "files"))
        found["workspace_folder"] = place.text("folder")
        found["workspace_mib"] = place.number("mib")
        found["workspace_files"] = place.number("files")
    return found


def workspace_of(row: Agent) -> dict[str, Any]:
    """Return an agent's kits, and what its workspace has beside the usual, as a file says them."""
    said: dict[str, Any] = {"folder": row.workspace_folder}
    said["mib"] = row.workspace_mib if row.workspace_mib != USUAL_MIB else None
    said["files"] = row.workspace_files if row.workspace_files != USUAL_FILES else None
    place = {name: value for name, value in said.items() if value}
    return {"builtin_tools": row.builtin_tools, **({"workspace": place} if place else {})}
