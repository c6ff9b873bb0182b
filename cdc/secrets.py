"""Values that a configuration names instead of containing them: `env:NAME` and `file:PATH`."""

from __future__ import annotations

import os
from pathlib import Path

from cdc.errors import BadOption


def is_reference(value: str) -> bool:
    """Whether a value names an environment variable or a file."""
    return value.startswith(("env:", "file:"))


def read_secret(value: str, option: str, example: str = "…") -> str:
    """Return the content of the variable or file that a value names; any other value as it is.

    The variable or the file is read at each call. Raises BadOption, whose text contains the name of
    the option, and never any part of a secret.

    Args:
        value: the option as it is configured.
        option: its name, for errors.
        example: what the variable could contain, for errors.
    """
    if value.startswith("env:"):
        text = os.environ.get(value[4:], "")
        if not text:
            raise BadOption(
                f"The environment variable {value[4:]} of '{option}' is not set.",
                f"Set it on each machine that connects: export {value[4:]}='{example}'.",
            )
        return text.strip()
    if value.startswith("file:"):
        try:
            return Path(value[5:]).read_text().strip()
        except OSError as error:
            raise BadOption(
                f"The file {value[5:]} of '{option}' cannot be read.",
                "Check that it exists and that this user may read it, on each machine that"
                " connects.",
            ) from error
        except UnicodeError:
            pass  # This error contains the file's bytes, so it must not become a cause.
        raise BadOption(f"The file {value[5:]} of '{option}' is not text.", "Write it as UTF-8.")
    return value
