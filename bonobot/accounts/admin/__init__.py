"""The admin of users, organizations, tokens, and issuers."""
