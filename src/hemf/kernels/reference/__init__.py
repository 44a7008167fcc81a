"""The kernels in plain NumPy, to test the compiled ones against."""
