"""The layouts of a pipeline in its checkpoint: a file `layouts/N` for each, N its first batch.

No file is written again once a batch was written by its layout. One that cannot be read counts as a
layout that lacked all tables.
"""

from __future__ import annotations

from py4j.protocol import Py4JError

from cdc.checkpoint import Folder
from cdc.delta.tables import LayoutHistory
from cdc.errors import TransientError
from cdc.pipeline.config import Config

_LAYOUTS = "layouts"


def read_layouts(folder: Folder, base: str) -> LayoutHistory:
    """Return the layouts that the runs of a pipeline have recorded.

    Args:
        folder: its checkpoint.
        base: where its tables are now.
    """
    batches = folder.numbers(_LAYOUTS)
    texts = [(batch, folder.read_text(f"{_LAYOUTS}/{batch}")) for batch in batches]
    return LayoutHistory(base, tuple(texts))


def record_layout(folder: Folder, config: Config, first: int) -> LayoutHistory:
    """Record the layout of a run, and return the layouts of all runs.

    Call it before the first batch of the run. May be repeated after any failure. Raises
    TransientError if the checkpoint cannot be read or written.

    Args:
        folder: the checkpoint of the pipeline.
        config: its configuration.
        first: the number of the first batch of the run.
    """
    try:
        recorded = read_layouts(folder, config.base)
        is_inside = config.checkpoint.startswith(config.base.rstrip("/") + "/")
        layouts = recorded.extended(first, config.layout, moves=is_inside)
        for batch, text in sorted(set(layouts.entries) - set(recorded.entries)):
            folder.write_text(f"{_LAYOUTS}/{batch}", text)
        for batch in {each for each, _ in recorded.entries} - {each for each, _ in layouts.entries}:
            folder.remove(f"{_LAYOUTS}/{batch}")
    except (OSError, Py4JError) as error:
        raise TransientError(
            f"The checkpoint at {folder.path} cannot be written: {type(error).__name__}.",
            "Check that its folder is there and can be written, and start the run again.",
        ) from error
    return layouts
