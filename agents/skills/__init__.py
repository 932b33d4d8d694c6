"""Skills: named instructions with declared arguments, for people, agents and MCP clients."""
