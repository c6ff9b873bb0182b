"""An S3 server that checks who asks, with one bucket."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from moto import settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server import threaded_moto_server
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from moto.sts.models import sts_backends

from tests.jvm import INTERPRETED, with_spark_settings
from tests.store_faults import StoreFaults

ROOT = Path(__file__).parents[1]
# What some users may not do, besides the one who may do all.
_REFUSED = ("s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload")


class ObjectStore(NamedTuple):
    """Where it listens, and whom it lets in to the bucket `lake`.

    `limited` are the keys of users who may do all but one action, by that action.
    """

    endpoint: str
    access_key: str
    secret_key: str
    limited: Mapping[str, tuple[str, str]]

    def client(self) -> Any:
        """Return a client of the user who may do all."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def run(self, program: str, *given: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a module of the tests with the keys in its environment, and `more` variables."""
        keys = {"S3_ACCESS": self.access_key, "S3_SECRET": self.secret_key}
        return subprocess.run(
            [sys.executable, "-m", program, *given],
            env={**os.environ, **with_spark_settings(INTERPRETED), **keys, **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def assume_role(self, *keys: str) -> None:
        """Let in who has these temporary keys: an access key, a secret key and a token.

        A real store makes them itself. With given ones a test can look for them.
        """
        [role] = sts_backends[DEFAULT_ACCOUNT_ID]["aws"].assumed_roles
        role.access_key_id, role.secret_access_key, role.session_token = keys


@contextmanager
def object_store(faults: StoreFaults | None = None) -> Iterator[ObjectStore]:
    """Start it; its requests meet the faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "list_multipart_uploads", _list_uploads)
        if faults is not None:
            application = threaded_moto_server.DomainDispatcherApplication
            patch.setattr(
                threaded_moto_server,
                "DomainDispatcherApplication",
                lambda create: faults.upon(application(create)),
            )
        yield from _serve()


def _serve() -> Iterator[ObjectStore]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    made = {"endpoint_url": endpoint, "region_name": "us-east-1", **keys}
    try:
        # Moto keeps what an earlier server of this process contained.
        urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
        boto3.client("s3", **made).create_bucket(Bucket="lake")
        iam = boto3.client("iam", **made)
        keys_of_all = _add_user(iam, "cdc")
        limited = {action: _add_user(iam, f"no-{action[3:]}", action) for action in _REFUSED}
        _assume_role(iam, boto3.client("sts", **made))
        _check_from_now_on()
        yield ObjectStore(endpoint, *keys_of_all, limited)
    finally:
        _check_from_now_on(float("inf"))
        server.stop()


def _assume_role(iam: Any, sts: Any) -> None:
    """Give temporary keys to somebody who may do all."""
    everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
    made = iam.create_role(RoleName="lake", AssumeRolePolicyDocument=policy)
    iam.put_role_policy(RoleName="lake", PolicyName="own", PolicyDocument=policy)
    sts.assume_role(RoleArn=made["Role"]["Arn"], RoleSessionName="test")


def _add_user(iam: Any, name: str, *refused: str) -> tuple[str, str]:
    """Add a user who may do all but some actions; return the keys."""
    statements = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
    statements += [{"Effect": "Deny", "Action": each, "Resource": "*"} for each in refused]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


# An upload into a file whose name contains this began now. Moto says of every one: in 2010.
YOUNG = "young"
_BEGUN = re.compile(rf"(<Key>[^<]*{YOUNG}(?:(?!</Upload>).)*<Initiated>)[^<]*", re.DOTALL)
_list_moto_uploads = S3Response.list_multipart_uploads


def _list_uploads(response: S3Response) -> Any:
    status, headers, body = _list_moto_uploads(response)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    text = body.decode() if isinstance(body, bytes) else body
    return status, headers, _BEGUN.sub(rf"\g<1>{now}", text)


def _check_from_now_on(free_requests: float = 0) -> None:
    from moto.core.responses import ActionAuthenticatorMixin

    settings.INITIAL_NO_AUTH_ACTION_COUNT = free_requests
    ActionAuthenticatorMixin.request_count = 0
