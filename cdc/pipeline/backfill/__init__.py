"""Backfill: documents or changes are read again, while the pipeline runs."""

from cdc.pipeline.backfill.request import INTO, BackfillRequest
from cdc.pipeline.backfill.tables import BackfillResult, Part

__all__ = ["INTO", "BackfillRequest", "BackfillResult", "Part"]
