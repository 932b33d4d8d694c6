"""REST APIs as servers: the operations of an OpenAPI document become tools (docs/rest-apis.md).

`document`, `schema_conversion`, `operations`, `requests` and `responses` are pure: text becomes
operations, an operation and arguments become a request, a response becomes a tool result. Documents
are untrusted, so they are parsed in a process that can be killed
(`mcp_servers.schemas.subprocess_pool`). No library fits: validators reject a whole document for a
fault in one operation and fetch its references, and none encodes parameters in OpenAPI's styles.
"""
