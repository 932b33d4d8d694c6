"""What an agent has that built-in tools are for: which of them are there for it. Pure."""

from dataclasses import dataclass

from agents.builtin_tools.tool import BuiltinTool
from agents.governance.kits import Toolbox


@dataclass(frozen=True, slots=True)
class Having:
    """What an agent has; `many`: more tools of servers than are shown to its model at once."""

    resources: bool
    skills: bool
    many: bool
    toolbox: Toolbox

    def uses(self, tool: BuiltinTool) -> bool:
        """Tell whether a tool is there for the agent."""
        return (
            (self.resources or not tool.of_resources)
            and (self.skills or not tool.of_skills)
            and (self.many or not tool.of_many)
        )
