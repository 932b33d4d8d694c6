"""OAuth 2.1 client for upstream servers.

A server with the sign-in `oauth2` is reached through an `OAuthEndpoint`: each HTTP request gets a
token issued for that server and subject only. Tokens that callers present to Bonobot are never
forwarded. `grants` holds the stored state, and all requests go through the egress rules (`http`).
"""
