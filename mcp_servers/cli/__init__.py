"""Commands about MCP servers and presets."""
