"""The gateway: Bonobot as an MCP server, in both eras, over Streamable HTTP and stdio.

`transports` serves HTTP and stdio; `authentication` and `routes` resolve tokens and addresses;
`dispatcher` routes requests to handlers; `catalog` lists definitions; `handlers` calls through the
pipeline; `mcp_host` forwards servers' requests to the client. The gateway has no tables.
"""
