"""Token: what a resume token, or the `position` of a changelog's row, tells. Asks no server."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from cdc.errors import BadToken
from cdc.model import timestamp, token
from cdc.model.key import document_key_json
from cdc.model.token import Token
from jobs.result import told
from jobs.terminal import Terminal

_REMEDY = "Give hex digits, or JSON with `_data` and `_typeBits`."


def read(given: str, type_bits: str | None) -> Token:
    """The token of that hex, or of that JSON with `_data` and perhaps `_typeBits` (Extended JSON or
    base64 text). Raises BadToken."""
    text = given.strip()
    if not text.startswith("{"):
        return token.decode(text, None if type_bits is None else _binary(type_bits))
    fields = _fields(text)
    data = fields.get("_data")
    if not isinstance(data, str):
        raise BadToken("The JSON holds no text `_data`.", _REMEDY)
    return token.decode(data, _binary(type_bits or fields.get("_typeBits") or ""))


def _fields(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadToken("The token begins like JSON and is none.", _REMEDY) from error
    return fields


def _binary(value: Any) -> bytes:
    while isinstance(value, dict):
        value = value.get("$binary", value.get("base64"))
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError) as error:
        raise BadToken(
            "The type bits are not base64.", "Copy them as the server gave them."
        ) from error


def described(found: Token) -> dict[str, Any]:
    """All of it as JSON takes it; null is what the token does not tell. Keys are canonical Extended
    JSON."""
    time = found.cluster_time
    return {
        "version": found.version,
        "kind": found.kind,
        "cluster_time": timestamp.text(time),
        "time": datetime.fromtimestamp(time.time, UTC).isoformat().replace("+00:00", "Z"),
        "txn_op_index": found.txn_op_index,
        "from_invalidate": found.from_invalidate,
        "uuid": found.uuid and str(found.uuid),
        "operation_type": found.operation_type,
        "document_key": _extended(found.document_key),
        "operation_description": _extended(found.operation_description),
        "fragment": found.fragment,
    }


def _extended(document: bytes | None) -> Any:
    return document and json.loads(document_key_json(document))


def show(console: Console, found: Token) -> None:
    """A line for each thing that the token tells."""
    for name, value in described(found).items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            line = f"{name.replace('_', ' ') + ':':<23}{text}"
            console.print(line, soft_wrap=True)


@click.command()
@click.argument("given", metavar="TOKEN")
@click.option(
    "--type-bits", help="Its _typeBits in base64; without them a number's type is a guess."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@told
def main(given: str, type_bits: str | None, as_json: bool) -> int:
    """Print what a resume token tells: hex, or JSON with _data and _typeBits. Asks no server.

    Example: mongodb-cdc token 826B016EF0000000082B0229296E04
    """
    found = read(given, type_bits)
    if as_json:
        click.echo(json.dumps(described(found), indent=2))
    else:
        show(Terminal(), found)
    return 0


if __name__ == "__main__":
    main()
