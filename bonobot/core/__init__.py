"""Leaves without models: what every other package may import and which imports none of them."""
