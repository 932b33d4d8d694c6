"""Bonobot as an authorization server: programs are let in by people, without a pasted token.

Optional (the extra `oauth`, `BONOBOT_OAUTH`): a program at one of our addresses is told to come
here (RFC 9728), reads how (RFC 8414), says who it is (a client id metadata document, or RFC 7591),
sends its person to a page that asks, and gets tokens of a grant
(`bonobot.accounts.tokens.services`), which it renews by itself. The protocol's machinery is Django
OAuth Toolkit's; it is bound here.
"""
