"""What is known of users and items beside ratings: tables of it, and their encoding in numbers."""

from hemf.features.encoder import FeatureEncoder

__all__ = ["FeatureEncoder"]
