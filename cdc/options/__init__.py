"""The options of the source: declared once, checked and typed.

In: options as text, by name. Out: the same options typed, or an error that names the option.
"""

from cdc.options.declared import MODES, OPTIONS, SourceOptions
from cdc.options.option import Option
from cdc.options.parsing import nearest, parse, table

__all__ = ["MODES", "OPTIONS", "Option", "SourceOptions", "nearest", "parse", "table"]
