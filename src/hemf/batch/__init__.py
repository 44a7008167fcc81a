"""Batch and empirical variational Bayes: bVB and eVB."""
