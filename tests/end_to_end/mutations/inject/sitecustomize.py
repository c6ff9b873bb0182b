"""Python imports this module at the start of each process whose PYTHONPATH names its folder."""

from tests.end_to_end.mutations.mutation import install

install()
