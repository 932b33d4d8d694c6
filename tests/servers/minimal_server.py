"""The smallest server on the SDK, over stdio, as its documentation begins: one tool."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("greeter")


@server.tool()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}."


if __name__ == "__main__":
    server.run()
