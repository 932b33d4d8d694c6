"""MCP bundles (`.mcpb`, formerly `.dxt`): zip archives with a server and its manifest."""
