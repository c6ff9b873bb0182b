"""The hot path of Spark tasks, compiled by numba to machine code: BSON bytes to columns.

Call `loading.columns()` or `loading.typed()` to load it. Importing this package loads nothing.
"""
