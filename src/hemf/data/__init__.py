"""What comes in: ratings, ids, sources, features and data sets."""
