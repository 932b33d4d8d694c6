"""The registry: which MCP servers there are, what they offer, and how to reach them."""
