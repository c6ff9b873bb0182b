"""Conditions and projections that the server evaluates: on events, and on documents."""

from cdc.mongo.query import event_filter, literal_documents, projection
from cdc.mongo.query.event_filter import CUTTING_EVENTS

__all__ = ["CUTTING_EVENTS", "event_filter", "literal_documents", "projection"]
