"""The gateway: Bonobot as an MCP server, in both eras, over Streamable HTTP and stdio.

`transports` answers HTTP and stdio, `authentication` and `routes` know who asks for what;
`dispatcher` hands each request to its method; `catalog` says what there is, `handlers` calls
through the pipeline, `mcp_host` takes back to the caller what servers ask. It has no tables of its
own.
"""
