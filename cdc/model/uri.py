"""What `uri` may be, as text. It may hold a password, so no error here quotes any of it."""

from __future__ import annotations

import re

from cdc.errors import BadOption

# Spark redacts what is spelt so, and nothing else is taken: the driver would take passwords with
# quotes, spaces and letters of any language too, of which the part behind would be shown.
CONNECTION_STRING = "mongodb([+]srv)?://[!#-&(-~]*"
# What a password with a slash in it makes of a connection string: its beginning would be a host.
_SLASH_IN_PASSWORD = re.compile("mongodb([+]srv)?://[^/?]*/[^?]*@")
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"file:(//)?(?!.*://).*", re.DOTALL)


def not_quoting(name: str) -> str:
    """What an error may quote of a name: where "uri=" was forgotten, it is a connection string."""
    return name.partition(":")[0]


def require_given(uri: str) -> None:
    """Raises BadOption unless it is `env:NAME`, `file:PATH` or a connection string."""
    if not uri.startswith(("env:", "file:")):
        require_connection_string(uri)
    elif not _VARIABLE.fullmatch(uri) and not _FILE.fullmatch(uri):
        raise BadOption(
            "Option 'uri' names no variable or file, but may hold a connection string.",
            "Write it as env:NAME, without a dollar sign, as file:PATH, or by itself.",
        )


def require_connection_string(uri: str) -> None:
    """Raises BadOption if it cannot be one, or has a character that has to be encoded."""
    if not re.match("mongodb([+]srv)?://", uri):
        raise BadOption(
            "Option 'uri' is not a MongoDB connection string.",
            "Write it as mongodb://user:password@host/?replicaSet=name, env:NAME or file:PATH.",
        )
    if not re.fullmatch(CONNECTION_STRING, uri):
        raise BadOption(
            "Option 'uri' holds a quotation mark, a space or another character that may not stand"
            " in a connection string.",
            "Percent-encode it, as in p%27w for p'w; %20 is a space, %22 a double quotation mark.",
        )
    if _SLASH_IN_PASSWORD.match(uri):
        raise BadOption(
            "Option 'uri' holds an @ behind its first slash, as where a password holds a slash.",
            "Percent-encode user and password: %2F is a slash, %40 an @.",
        )
