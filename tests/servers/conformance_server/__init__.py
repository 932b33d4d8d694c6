"""An MCP server with every fixture that the official conformance suite requires of a server.

`python -m tests.servers.conformance_server stdio` or `http [PORT]` (on the loopback, at `/mcp`;
prints `PORT <number>` once it listens). Both eras; the names are the suite's own.

Tools that send requests to the client do so in its era: over the live connection in the handshake
era, by another round in the modern one.
"""
