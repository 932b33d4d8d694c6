"""The organization's own MCP server at `/mcp` (docs/agents-as-tools.md).

It has a chat tool for each agent that the token may run, tools for sessions, and management tools
for the REST operations that the token's role allows. `handlers` answers clients; `tools` declares
tools and audits their calls.
"""
