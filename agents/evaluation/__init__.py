"""Evaluation: sessions recorded, and told again to an agent as it would be."""
