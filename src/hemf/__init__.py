"""Online prediction of dyadic data with heterogeneous matrix factorization."""
