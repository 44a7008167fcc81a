"""Input: ratings, ids, sources, features and data sets."""
