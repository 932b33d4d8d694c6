"""Who: users, organizations, memberships with roles, tokens; the principal behind every request."""
