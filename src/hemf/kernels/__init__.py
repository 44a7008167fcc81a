"""Hot loops in Numba, and the same in plain NumPy (`reference`) to prove them by.

Importing this package imports Numba; everything above it does so only when there is work.
"""
