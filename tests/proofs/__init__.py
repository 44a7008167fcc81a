"""What the proofs share: small problems, and the lower bound computed the long way."""
