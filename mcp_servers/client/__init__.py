"""Connections: how MCP servers are reached, over stdio and Streamable HTTP, in both eras.

Everybody else uses `pool.connections()`, hands it an `Endpoint` and gets raw JSON results or an
`UpstreamError`. Nothing here knows of rows, agents or policies.

A modern HTTP call is one POST through the guarded pool of its server and credential. Everything
stateful (a child process, a session of the handshake era) belongs to one holder. The JSON-RPC
peer is our own rather than the SDK's client: results stay raw and whole, an invalid definition
can't hide the others, no schema of a stranger is ever compiled, every buffer has a bound, and
HTTP statuses are seen.
"""
