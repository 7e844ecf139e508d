"""A server with the interface of S3, in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from infra.storage.s3 import S3Storage


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
    """Make the bucket of a storage."""
    storage.client.create_bucket(
        Bucket=storage.bucket, CreateBucketConfiguration={"LocationConstraint": storage.region}
    )
