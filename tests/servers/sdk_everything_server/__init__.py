"""The everything-server of the MCP Python SDK, the upstream that its own conformance run uses.

`server.py` is `examples/servers/everything-server/mcp_everything_server/server.py` of the source
distribution of `mcp` 2.3.0, unchanged; its license is in `LICENSE`. To update it, copy the file of
the version in `requirements.lock`.

`python -m tests.servers.sdk_everything_server` serves it over Streamable HTTP on the loopback, at
`/mcp`; prints `PORT <number>` once it listens.
"""
