"""REST APIs as servers: an OpenAPI document's operations become tools (docs/rest-apis.md).

`document`, `schema_conversion`, `operations`, `requests` and `responses` are pure: a text becomes
operations, an operation and arguments become a request, an answer becomes a tool's result. What is
read of a stranger's document is read in a process that can be killed
(`mcp_servers.schemas.subprocess_pool`). No library does this within our bounds: validators of whole
documents refuse all of one for a fault in one operation and fetch its references, and none writes
parameters in OpenAPI's styles.
"""
