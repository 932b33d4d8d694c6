"""What the admin starts with: dashboard, onboarding, command palette, settings check."""
