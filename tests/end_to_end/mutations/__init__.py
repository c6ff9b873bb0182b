"""Deliberate defects of the product: the oracles of `tests.end_to_end.oracle` have to find them.

A mutation patches a function of the product in all Python processes of a job: driver, planner and
workers. They import it by `inject/sitecustomize.py`, which is on the job's PYTHONPATH; the product
has no hook for it. `make mutations` runs the short form with each of them.

Compiled functions stay as they are: they come from a cache that other programs use too. Their
callers are patched instead, or their counterparts in plain Python, by which small replies are read.
"""

from tests.end_to_end.mutations.mutation import MUTATIONS, Mutation

__all__ = ["MUTATIONS", "Mutation"]
