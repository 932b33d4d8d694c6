"""OAuth 2.1 towards upstream servers: how calls get a bearer token of their own.

A server whose sign-in is `oauth2` is reached through an `OAuthEndpoint`: each HTTP request to it is
signed right before it leaves, with a token that was given for that server and subject alone. What
callers present to Bonobot never travels on. Decisions (`metadata`, `types`, `auth_config`) are
pure, rows are the truth (`grants`), and all that is asked of anybody goes through egress
(`http`).
"""
