"""Queries of a fitted model."""
