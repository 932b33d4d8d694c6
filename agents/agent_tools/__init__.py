"""The settings of the tools of an agent: what may be called, and with an approval or without."""
