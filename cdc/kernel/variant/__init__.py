"""BSON to VARIANT."""
