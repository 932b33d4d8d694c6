"""Language models behind one interface: several providers, and an offline model."""
