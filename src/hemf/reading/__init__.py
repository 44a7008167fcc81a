"""Ratings as people have them: files, frames, arrays, ids of any type."""
