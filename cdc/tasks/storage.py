"""Storage options (`[storage]`): how tasks, by pyarrow, and Spark, by Hadoop, reach a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from cdc.errors import BadOption
from cdc.secrets import is_reference, read_secret

_SECRETS = ("access.key", "secret.key", "session.token")
STORAGE_KEYS = {
    "endpoint": "URL of a server that speaks S3, like `https://minio.example:9000`; Amazon's by"
    " default.",
    "region": "Region of the bucket; by default that which the bucket's server states.",
    "access.key": "`env:NAME` or `file:PATH` that contains the access key. By default tasks and"
    " Spark look where Amazon's libraries do: environment, machine role.",
    "secret.key": "`env:NAME` or `file:PATH` that contains the secret key.",
    "session.token": "`env:NAME` or `file:PATH` that contains the token of temporary keys.",
    "anonymous": "`true`: requests are not signed.",
}
# Hadoop calls S3 by other names than pyarrow. They all name the same objects.
S3_SCHEMES = ("s3", "s3a", "s3n")
_S3A = "org.apache.hadoop.fs.s3a"
_REMOTE = re.compile(r"(?!file:)[A-Za-z][\w+.-]*://")
_URL = re.compile(r"[A-Za-z][\w+.-]+:")
# A user with a password, for S3 any user, and a query, which is where signatures of a URL are.
_KEYS_IN_URL = re.compile(
    r"s3[an]?:/*[^/]*@|(?!file:)[^/]*:/*[^/]*:[^/]*@|[^?]*\?[^=]*=", re.IGNORECASE
)
# What pyarrow, Hadoop and this program would not all read as the same place.
_AMBIGUOUS = re.compile(
    r"(?![a-z][a-z0-9+.-]*:/)|[^/]*:/*\Z|s3[an]?:(?!//[A-Za-z0-9._-]+(/|\Z))|file:(?!(//)?/[^/])"
    r"|[^/]*//(?![A-Za-z0-9._@:-]*(/|\Z))|[^/]*//.*/\.{0,2}(/|\Z)"
)
_UNWRITABLE = re.compile("[\0-\x1f\x7f\ud800-\udfff]")
_AWS_ERROR = re.compile(r"AWS Error ([A-Z_]+)|\bstatus code (4\d\d)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Storage:
    """The options of `[storage]`, by name. They may travel: secrets are named, not contained.

    Raises BadOption if they contain a secret, or do not fit together.
    """

    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _SECRETS:
            if name in self.options and not is_reference(self.options[name]):
                raise BadOption(
                    f"Option '{name}' in [storage] contains its value.",
                    f'Write where the value is: {name} = "env:NAME" or "file:PATH".',
                )
        if ("access.key" in self.options) != ("secret.key" in self.options):
            raise BadOption(
                "Of 'access.key' and 'secret.key' in [storage] one is not set.", "Set both."
            )
        if self.is_anonymous and "access.key" in self.options:
            raise BadOption(
                "Options 'anonymous' and 'access.key' in [storage] exclude each other.",
                "Remove one of them.",
            )
        if not re.fullmatch(r"(https?://[^/?#@\s]+/?)?", self.options.get("endpoint", "")):
            raise BadOption(
                "Option 'endpoint' in [storage] is no URL of a server.",
                "Write it like https://minio.example:9000, without user and path.",
            )

    @property
    def is_anonymous(self) -> bool:
        value = self.options.get("anonymous", "false").lower()
        if value not in ("true", "false"):
            raise BadOption("Option 'anonymous' in [storage] is no truth.", "Use true or false.")
        return value == "true"

    def locate(self, url: str) -> tuple[Any, str]:
        """The file system of pyarrow for a URL, and the path of the URL in it.

        Reads the secrets. Other stores than S3 use the credentials of the machine. Raises BadOption
        if a secret cannot be read, and OSError or ValueError as pyarrow does.
        """
        if scheme_of(url) not in S3_SCHEMES:
            # Of the whole URL pyarrow would decode percent signs; for Hadoop they are letters.
            root, _, rest = re.sub(r"^(\w[\w+.-]*://[^/]*)/?", r"\1\n", url).partition("\n")
            system, top = fs.FileSystem.from_uri(f"{root}/")
            return system, f"{top.rstrip('/')}/{rest}".rstrip("/")
        path = url.partition("://")[2].rstrip("/")
        bucket = path.partition("/")[0]
        endpoint = self.options.get("endpoint", "").rstrip("/")
        scheme, _, host = endpoint.partition("://")
        region = self.options.get("region")
        if region is None and not endpoint:
            region = fs.resolve_s3_region(bucket)
        keys = self._secrets()
        return fs.S3FileSystem(
            access_key=keys.get("access.key"),
            secret_key=keys.get("secret.key"),
            session_token=keys.get("session.token"),
            anonymous=self.is_anonymous,
            region=region or "us-east-1",
            scheme=scheme or "https",
            endpoint_override=host or None,
            # A small file then takes one request, and leaves nothing if its task is killed.
            allow_delayed_open=True,
        ), path

    def hadoop(self, url: str) -> dict[str, str]:
        """The settings of Hadoop's S3A for the bucket of a URL, with the secrets; else none."""
        if scheme_of(url) not in S3_SCHEMES:
            return {}
        bucket = urlsplit(url).netloc
        keys = self._secrets()
        given = {
            "endpoint": self.options.get("endpoint"),
            "endpoint.region": self.options.get("region")
            or ("us-east-1" if "endpoint" in self.options else None),
            # A server of one's own has no name in DNS for each bucket.
            "path.style.access": "true" if "endpoint" in self.options else None,
            "access.key": keys.get("access.key"),
            "secret.key": keys.get("secret.key"),
            "session.token": keys.get("session.token"),
            "aws.credentials.provider": self._provider(),
        }
        settings = {
            f"fs.s3a.bucket.{bucket}.{name}": value for name, value in given.items() if value
        }
        if (scheme := scheme_of(url)) != "s3a":
            settings[f"fs.{scheme}.impl"] = f"{_S3A}.S3AFileSystem"
        return settings

    def _provider(self) -> str | None:
        if self.is_anonymous:
            return f"{_S3A}.AnonymousAWSCredentialsProvider"
        if "session.token" in self.options:
            return f"{_S3A}.TemporaryAWSCredentialsProvider"
        if "access.key" in self.options:
            return f"{_S3A}.SimpleAWSCredentialsProvider"
        return None

    def _secrets(self) -> dict[str, str]:
        return {
            name: read_secret(self.options[name], f"storage.{name}")
            for name in _SECRETS
            if name in self.options
        }


def parse_location(location: str, option: str) -> str:
    """Return an absolute path or a URL that is one place for pyarrow, Hadoop and this program.

    A relative path starts at the folder in which the program was started. Raises BadOption for any
    other text. A URL that may contain a credential is refused and not quoted: logs, errors and
    tables show a place.

    Args:
        location: the path or URL, without a slash at its end.
        option: the option that names it.
    """
    if _UNWRITABLE.search(location):
        raise BadOption(
            f"{option} contains a control character, or half of a character.", "Write it without."
        )
    if not _URL.match(location):
        # After two slashes Hadoop reads the name of a host.
        return "/" + str(Path(location).absolute()).lstrip("/")
    if _KEYS_IN_URL.match(location):
        raise BadOption(
            f"The URL of {option} contains keys.",  # which must not be quoted
            "Name them in [storage], with access.key and secret.key; a store other than S3 has"
            " settings of Hadoop for them.",
        )
    if _AMBIGUOUS.match(location):
        raise BadOption(
            f"{option} cannot be '{location}': not everybody would read it as the same place.",
            "Write it like s3a://bucket/folder: the scheme in small letters, and no part that is"
            " empty, '.' or '..'.",
        )
    return location


def scheme_of(url: str) -> str:
    return url.partition(":")[0].lower() if is_remote(url) else ""


def is_remote(folder: str) -> bool:
    """Whether a folder is a URL of another file system than the local one."""
    return _REMOTE.match(folder) is not None


def explain(error: BaseException) -> str:
    """What a file system answered, without anything that it quotes: keys, hosts, signatures."""
    found = _AWS_ERROR.search(str(error))
    code = found.group(1) or found.group(2) if found else type(error).__name__
    if re.search(r"ACCESS_?DENIED|FORBIDDEN|KEY_ID|SIGNATURE|TOKEN|CREDENTIAL|403|401", code, re.I):
        return f"{code}: check 'access.key' and 'secret.key' in [storage]"
    return code
