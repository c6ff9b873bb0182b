"""BSON to Extended JSON and to merge keys."""
