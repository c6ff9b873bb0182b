"""The encoders of `cdc.model`, compiled by numba: BSON bytes in, columns out.

Other packages import names from here only. `loading` imports the compiled modules at first use.
"""

from cdc.kernel import event_columns, loading, oplog_reply, reply
from cdc.kernel.event_columns import NONE, Events
from cdc.kernel.loading import freeze_objects
from cdc.kernel.places import MISFIT, MISSING, TAKEN, Numbers, Places
from cdc.kernel.reply import WORTH, Total

__all__ = [
    "MISFIT",
    "MISSING",
    "NONE",
    "TAKEN",
    "WORTH",
    "Events",
    "Numbers",
    "Places",
    "Total",
    "event_columns",
    "freeze_objects",
    "loading",
    "oplog_reply",
    "reply",
]
