"""MCP client: connections to servers over stdio and Streamable HTTP, in both eras.

Other packages pass a `ServerEndpoint` to `pool.get_connection_pool()` and get raw JSON results or
an `UpstreamError`. Nothing here depends on models, agents or policies.

A modern HTTP call is one POST through the guarded pool of its server and credential. Everything
stateful (a child process, a session of the handshake era) belongs to one holder. We use our own
JSON-RPC peer rather than the SDK's client: results stay raw, an invalid definition can't hide the
others, untrusted schemas are never compiled, every buffer is bounded, and HTTP statuses are
available.
"""
