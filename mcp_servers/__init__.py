"""The registry of MCP servers, their definitions and connections."""
