"""Objects in a bucket of S3 or of a server with the same interface. boto3 is loaded by the first call."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from infra.storage.interface import (
    Closing,
    Damaged,
    Nothing,
    NotStored,
    Readable,
    StorageAway,
    StorageError,
    StoredObject,
    check_key,
    check_range,
    read_exactly,
    wrong_size,
)
from infra.times_in_text import written

if TYPE_CHECKING:  # its rows need Django, and a storage can do without
    from infra.circuits.shared import SharedCircuit

MIB: Final = 1024 * 1024
#: A smaller body is one request; a larger one goes up in parts, of which memory holds one.
PART_BYTES: Final = 8 * MIB
LARGE_PART_BYTES: Final = 64 * MIB
#: Parts of the first size; an upload has at most 10,000, so the later ones of a body without end are larger.
SMALL_PARTS: Final = 1000
#: A person may wait for a request: with both, one to a server that says nothing ends within 30 s, and the circuit
#: of the storage lets nobody wait after three of them.
CONNECT_SECONDS: Final = 4
READ_SECONDS: Final = 10
#: Of each request, the first try counted.
ATTEMPTS: Final = 2
#: How often a download that breaks is continued where it broke.
CONTINUED: Final = 3


class S3Storage:
    """Objects `prefix/key` of one bucket. Credentials come from where boto3 looks: environment, file, machine."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str = "",
        region: str = "",
        circuit: SharedCircuit | None = None,
    ) -> None:
        self.bucket, self.endpoint, self.region, self.circuit = bucket, endpoint, region, circuit
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None

    def put(self, key: str, body: Readable, size: int | None = None) -> int:
        """See `Storage.put`. A body beyond `PART_BYTES` goes up in parts, each with its checksum."""
        name = self._name(key)
        first = read_exactly(body, PART_BYTES)
        if len(first) < PART_BYTES:
            if size is not None and len(first) != size:
                raise wrong_size(key, size, len(first))
            with self._readable_errors(key):
                self.client.put_object(Bucket=self.bucket, Key=name, Body=first, ContentMD5=_md5(first))
            return len(first)
        return self._put_parts(key, first, body, size)

    def open(self, key: str, offset: int = 0, length: int | None = None) -> StoredObject:
        """See `Storage.open`. A download that breaks is continued, as long as the object is still the same."""
        check_range(offset, length)
        self._name(key)
        if length == 0:
            self.size(key)
            return Nothing()
        return S3Object.begin(self, key, offset, length)

    def delete(self, key: str) -> None:
        """See `Storage.delete`."""
        with self._readable_errors(key):
            self.client.delete_object(Bucket=self.bucket, Key=self._name(key))

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `Storage.list`; a thousand objects a request."""
        after: dict[str, str] = {}
        while True:
            with self._readable_errors(prefix or "the storage"):
                page = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix + prefix, **after)
            for row in page.get("Contents", ()):
                yield row["Key"].removeprefix(self.prefix), int(row["Size"])
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    def size(self, key: str) -> int:
        """See `Storage.size`."""
        with self._readable_errors(key):
            return int(self.client.head_object(Bucket=self.bucket, Key=self._name(key))["ContentLength"])

    @property
    def client(self) -> Any:
        """boto3's client: made once for each process, and used by all its threads."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                self._client = (os.getpid(), self._connect())
            return self._client[1]

    def get(self, key: str, offset: int, length: int | None, etag: str = "") -> Any:
        """The answer to one ranged request; with `etag` only if the object is still that one."""
        end = "" if length is None else str(offset + length - 1)
        more = {"IfMatch": etag} if etag else {}
        if offset or length is not None:
            more["Range"] = f"bytes={offset}-{end}"
        return self.client.get_object(Bucket=self.bucket, Key=self._name(key), **more)

    def _name(self, key: str) -> str:
        return self.prefix + check_key(key)

    def _connect(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=16,
            # Checksums by MD5 are what every server with this interface checks; those of newer SDKs many refuse.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if self.endpoint else "auto"},
        )
        return boto3.session.Session().client(
            "s3", region_name=self.region or None, endpoint_url=self.endpoint or None, config=config
        )

    def _put_parts(self, key: str, part: bytes, body: Readable, size: int | None) -> int:
        where = {"Bucket": self.bucket, "Key": self._name(key)}
        with self._readable_errors(key):
            where["UploadId"] = self.client.create_multipart_upload(**where)["UploadId"]
        done: list[dict[str, Any]] = []
        sent = 0
        try:
            while part:
                number = len(done) + 1
                with self._readable_errors(key):
                    answer = self.client.upload_part(
                        **where, PartNumber=number, Body=part, ContentMD5=_md5(part)
                    )
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
                sent += len(part)
                if size is not None and sent > size:
                    break
                part = read_exactly(body, PART_BYTES if number < SMALL_PARTS else LARGE_PART_BYTES)
            if size is not None and sent != size:
                raise wrong_size(key, size, sent)
            with self._readable_errors(key):
                self.client.complete_multipart_upload(**where, MultipartUpload={"Parts": done})
        except BaseException:
            with contextlib.suppress(
                Exception
            ):  # what is left of it, the bucket's own lifecycle rule removes
                self.client.abort_multipart_upload(**where)
            raise
        return sent

    @contextlib.contextmanager
    def _readable_errors(self, key: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        troubled = self._ask_circuit()
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if _is_overload(error):
                raise self._away(key, code) from error
            self._answered(troubled)
            if code in ("NoSuchKey", "404", "NotFound"):
                raise NotStored(
                    f"The storage has no object {key}.", way_out="Check whether the object has been deleted."
                ) from None
            if code in ("PreconditionFailed", "412"):
                raise Damaged(
                    f"{key} was replaced during the download.", way_out="Download it again."
                ) from None
            raise self._failed(key, code or str(error)) from error
        except (BotoCoreError, Boto3Error, OSError) as error:
            raise self._away(key, str(error) or type(error).__name__) from error
        else:
            self._answered(troubled)

    def _ask_circuit(self) -> bool:
        """Whether the storage failed lately; raises StorageAway while it is left alone."""
        if self.circuit is None:
            return False
        look = self.circuit.look()
        if look.open_until is not None:
            raise StorageAway(
                f"The storage of artefacts has not answered {self.circuit.failures} times in a row; it is tried "
                f"again at {written(look.open_until)}.",
                way_out="Try again after that. Nothing was stored or removed.",
            )
        return look.troubled

    def _answered(self, troubled: bool) -> None:
        if troubled and self.circuit is not None:
            self.circuit.answered()

    def _away(self, key: str, why: str) -> StorageAway:
        """It did not answer; counted, and the error to raise."""
        if self.circuit is not None:
            self.circuit.failed(why)
        message, way_out = self._words(key, why)
        return StorageAway(message, way_out=way_out)

    def _failed(self, key: str, why: str) -> StorageError:
        message, way_out = self._words(key, why)
        return StorageError(message, way_out=way_out)

    def _words(self, key: str, why: str) -> tuple[str, str]:
        return (
            f"The bucket {self.bucket} failed for {key}: {why}.",
            "Check bucket, endpoint, region and credentials (MUSTER_STORAGE, AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY), and try again.",
        )


class S3Object(Closing):
    """A range of an object, which is asked for again from where its connection broke."""

    def __init__(self, storage: S3Storage, key: str, offset: int, length: int | None) -> None:
        self._storage, self._key, self._offset, self._left = storage, key, offset, length
        self._etag, self._again = "", CONTINUED
        self._body: Any = None

    @classmethod
    def begin(cls, storage: S3Storage, key: str, offset: int, length: int | None) -> StoredObject:
        """The object, or `Nothing` where the range begins at its end or beyond."""
        found = cls(storage, key, offset, length)
        return found if found._ask() else Nothing()

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; an empty answer is the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(MIB), b""))
        if self._left is not None:
            size = min(size, self._left)
        if not size:
            return b""
        piece = self._piece(size)
        self._offset += len(piece)
        if self._left is not None:
            self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Give the connection back."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _piece(self, size: int) -> bytes:
        from botocore.exceptions import BotoCoreError, HTTPClientError

        while True:
            try:
                return bytes(self._body.read(size))
            except (BotoCoreError, HTTPClientError, OSError) as error:
                if not self._again:
                    raise self._storage._failed(self._key, str(error)) from error
                self._again -= 1
            self.close()
            if not self._ask():
                return b""

    def _ask(self) -> bool:
        from botocore.exceptions import ClientError

        with self._storage._readable_errors(self._key):
            try:
                answer = self._storage.get(self._key, self._offset, self._left, self._etag)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("InvalidRange", "416"):
                    return False
                raise
        self._etag, self._body = answer.get("ETag", ""), answer["Body"]
        return True


def _is_overload(error: Any) -> bool:
    """Whether the answer says that the server is broken or has too much to do, and not what was wrong with the call."""
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status >= 500 or status == 429


def _md5(part: bytes) -> str:
    return b64encode(hashlib.md5(part, usedforsecurity=False).digest()).decode()
