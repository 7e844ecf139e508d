"""A server with the interface of S3, in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import HTTPClientError

from infra.storage.s3 import S3Storage
from tests.support.patience import patience


@contextmanager
def s3_server() -> Iterator[str]:
    """Its address, while it runs."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(storage: S3Storage) -> None:
    """Make the bucket of a storage.

    The server loads what it answers with at the first request, which takes longer on a busy machine than a client
    waits: the request is made again, and a bucket that one of them has made is there.
    """
    deadline = time.monotonic() + patience(60)
    while True:
        try:
            storage.client.create_bucket(
                Bucket=storage.bucket, CreateBucketConfiguration={"LocationConstraint": storage.region}
            )
        except storage.client.exceptions.BucketAlreadyOwnedByYou:
            return
        except HTTPClientError:
            if time.monotonic() > deadline:
                raise
        else:
            return
