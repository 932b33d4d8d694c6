"""The gateway: Bonobot as an MCP server, in both eras, over Streamable HTTP and stdio.

`mount` answers HTTP and knows who asks (`visitors`, `places`); `serving` hands each request to its
method; `shelves` says what there is, `relaying` calls through the door, `hosting` takes back to the
caller what servers ask. It has no tables of its own (DESIGN section 2).
"""
