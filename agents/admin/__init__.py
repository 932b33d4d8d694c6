"""The admin site and the admin of agents."""
