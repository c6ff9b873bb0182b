"""The options of the source: declared once, checked and typed.

In: options as text, by name. Out: the same options typed, or an error that names the option.
"""

from cdc.options.declared import MODES, OPTIONS, SourceOptions
from cdc.options.mistakes import Mistakes, locate
from cdc.options.option import Option
from cdc.options.other_names import STARTING_POSITION, current_names
from cdc.options.parsing import (
    canonical,
    expand_duration,
    explain_duration,
    nearest,
    parse,
    table,
)

__all__ = [
    "MODES",
    "OPTIONS",
    "STARTING_POSITION",
    "Mistakes",
    "Option",
    "SourceOptions",
    "canonical",
    "current_names",
    "expand_duration",
    "explain_duration",
    "locate",
    "nearest",
    "parse",
    "table",
]
