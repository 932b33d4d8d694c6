"""Model endpoints, and the budget reservations of model requests."""
