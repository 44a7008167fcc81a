"""Hot loops in Numba, and the same functions in plain NumPy (`reference`) to test them against.

Importing this package imports Numba; everything above it does so only when there is work.
"""
