"""What is asked of a fitted model."""
