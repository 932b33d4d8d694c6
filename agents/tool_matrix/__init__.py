"""The tools of an agent as one matrix of servers, tools and settings."""
