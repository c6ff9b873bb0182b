"""Token: decode a resume token or the `position` of a changelog row."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from cdc.cli.commands import run_as_command
from cdc.errors import BadToken
from cdc.model import Token, document_key_json, resume_token, timestamp
from cdc.terminal import Terminal

_REMEDY = "Give hex digits, or JSON with `_data` and `_typeBits`."


def read(given: str, type_bits: str | None) -> Token:
    """Decode a token.

    Args:
        given: Hex digits, or JSON with `_data` and perhaps `_typeBits` (Extended JSON or base64).
        type_bits: The type bits in base64, instead of those in `given`.

    Raises BadToken.
    """
    text = given.strip()
    if not text.startswith("{"):
        return resume_token.decode(text, None if type_bits is None else _decode_binary(type_bits))
    fields = _parse_json(text)
    data = fields.get("_data")
    if not isinstance(data, str):
        raise BadToken("The JSON has no text `_data`.", _REMEDY)
    return resume_token.decode(data, _decode_binary(type_bits or fields.get("_typeBits") or ""))


def _parse_json(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadToken("The token begins with '{', but is not valid JSON.", _REMEDY) from error
    return fields


def _decode_binary(value: Any) -> bytes:
    while isinstance(value, dict):
        value = value.get("$binary", value.get("base64"))
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError) as error:
        raise BadToken(
            "The type bits are not base64.", "Copy them unchanged from the server's output."
        ) from error


def to_json(found: Token) -> dict[str, Any]:
    """Return all parts of a token as a JSON object; null for parts that it does not contain.

    Document keys are canonical Extended JSON.
    """
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
        "document_key": _to_extended_json(found.document_key),
        "operation_description": _to_extended_json(found.operation_description),
        "fragment": found.fragment,
    }


def _to_extended_json(document: bytes | None) -> Any:
    return document and json.loads(document_key_json(document))


def show(console: Console, found: Token) -> None:
    """Print a line for each part of the token."""
    for name, value in to_json(found).items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            line = f"{name.replace('_', ' ') + ':':<23}{text}"
            console.print(line, soft_wrap=True)


@click.command()
@click.argument("given", metavar="TOKEN")
@click.option(
    "--type-bits",
    help="The token's _typeBits in base64; without them the type of a number is a guess.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@run_as_command
def main(given: str, type_bits: str | None, as_json: bool) -> int:
    """Print the content of a resume token: hex, or JSON with _data and _typeBits. Needs no server.

    Example: mongodb-cdc token 826B016EF0000000082B0229296E04
    """
    found = read(given, type_bits)
    if as_json:
        click.echo(json.dumps(to_json(found), indent=2))
    else:
        show(Terminal(), found)
    return 0


if __name__ == "__main__":
    main()
