"""VARIANT to typed columns."""
