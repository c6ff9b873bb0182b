"""The accepted forms of the option `uri`. No error quotes it: it may contain a password."""

from __future__ import annotations

import re

from cdc.errors import BadOption

# Spark redacts text of this form, so no other form is accepted. The driver would also accept
# passwords with quotes, spaces and letters of any language; Spark would show the rest of these.
CONNECTION_STRING = "mongodb([+]srv)?://[!#-&(-~]*"
# A slash in a password makes the password's beginning look like a host.
_SLASH_IN_PASSWORD = re.compile("mongodb([+]srv)?://[^/?]*/[^?]*@")
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"file:(//)?(?!.*://).*", re.DOTALL)


def quotable_name(name: str) -> str:
    """The part of an option's name that an error may quote.

    The name is a connection string if the user forgot "uri=".
    """
    return name.partition(":")[0]


def require_uri(uri: str) -> None:
    """Raises BadOption unless it is `env:NAME`, `file:PATH` or a connection string."""
    if not uri.startswith(("env:", "file:")):
        require_connection_string(uri)
    elif not _VARIABLE.fullmatch(uri) and not _FILE.fullmatch(uri):
        raise BadOption(
            "Option 'uri' names no variable or file, but may contain a connection string.",
            "Write it as env:NAME, without a dollar sign, as file:PATH, or as mongodb://….",
        )


def require_connection_string(uri: str) -> None:
    """Raises BadOption if `uri` is no connection string or has a character that must be encoded."""
    if not re.match("mongodb([+]srv)?://", uri):
        raise BadOption(
            "Option 'uri' is not a MongoDB connection string.",
            "Write it as mongodb://user:password@host/?replicaSet=name, env:NAME or file:PATH.",
        )
    if not re.fullmatch(CONNECTION_STRING, uri):
        raise BadOption(
            "Option 'uri' contains a quotation mark, a space or another character that is not"
            " allowed in a connection string.",
            "Percent-encode it, as in p%27w for p'w; %20 is a space, %22 a double quotation mark.",
        )
    if _SLASH_IN_PASSWORD.match(uri):
        raise BadOption(
            "Option 'uri' contains an @ after its first slash; the password may contain a slash.",
            "Percent-encode user and password: %2F is a slash, %40 an @.",
        )
