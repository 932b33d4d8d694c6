"""Users, organizations, memberships, roles, tokens and the principal of each request."""
