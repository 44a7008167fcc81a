"""Online variational Bayes (oVB): learning as ratings arrive."""
