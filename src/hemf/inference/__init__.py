"""How belief changes."""
