"""Reads of documents that lie on several shards: lookups, and copies through a router."""
