"""Where a half-sweep runs."""
