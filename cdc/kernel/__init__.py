"""The hot path of Spark tasks, compiled by numba to machine code: BSON bytes into columns.

Whoever needs it calls `loading.columns()` and so on; importing this package loads nothing.
"""
