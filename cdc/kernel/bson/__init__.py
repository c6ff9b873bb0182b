"""BSON documents as tables of their values, and the fields of change events."""
