"""Benchmarks of what users compare: kernels, libraries and tables on one device. Floor 2."""
