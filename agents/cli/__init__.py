"""Commands about agents, sessions, approvals and what calls tools."""
