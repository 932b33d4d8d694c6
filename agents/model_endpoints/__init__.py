"""Model endpoints: where models are reached, and what a request reserves."""
