"""Pages for people: sign in, join an organization, profile."""
