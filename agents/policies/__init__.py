"""What may happen: decided by pure functions over facts that were read once."""
