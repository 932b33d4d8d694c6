"""The OAuth authorization server: people authorize clients instead of pasting tokens.

Optional (the extra `oauth`, `BONOBOT_OAUTH`). A client finds the server through resource metadata
(RFC 9728) and server metadata (RFC 8414), identifies itself (client id metadata document or RFC
7591), sends its user to the consent page, and gets access and refresh tokens of a grant
(`bonobot.accounts.tokens.services`). Based on Django OAuth Toolkit.
"""
