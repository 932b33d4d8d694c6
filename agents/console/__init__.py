"""Console of the admin: dashboard, onboarding, command palette, settings check."""
