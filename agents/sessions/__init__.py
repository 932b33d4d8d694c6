"""Sessions: a model, a loop, tools; every step a row before and after its effect."""
