"""Folders for jobs to begin with: announced with all files, sent in pieces, finished, listed, deleted."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from infra.api.problems import BadInput, too_big
from infra.api.rest import NewestFirst
from infra.errors import InvalidInput
from scheduler.agent.protocol import PIECE_BYTES
from scheduler.api.base import ApiView, body_of, person
from scheduler.api.serializers import moment
from scheduler.models import FolderUpload, FolderUploadState
from scheduler.services.uploads import verbs
from scheduler.services.uploads.stored import pieces_of

_SCOPES: Final = {"GET": "jobs:read", "POST": "jobs:write", "PUT": "jobs:write", "DELETE": "jobs:write"}
_ID: Final = OpenApiParameter("upload", OpenApiTypes.UUID, OpenApiParameter.PATH)
_SHA256: Final = OpenApiParameter(
    "sha256", str, description="Of the piece, in hexadecimal digits: a piece that is another is refused."
)


class UploadFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(
        help_text="Within the folder, with slashes. A backslash is written \\\\, and bytes that cannot be shown \\xNN."
    )
    size = serializers.IntegerField(help_text="bytes")
    executable = serializers.BooleanField(required=False, default=False)


class UploadRequestSerializer(serializers.Serializer[Any]):
    """A folder, before its bytes come. There are files and folders alone: links are not followed."""

    name = serializers.CharField(max_length=200, help_text="For lists.")
    files = UploadFileSerializer(many=True)
    folders = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Folders without files; others need not be named.",
    )


class UploadSerializer(serializers.Serializer[Any]):
    """An uploaded folder. Its bytes, one file after the other as listed by path, are cut into pieces."""

    id = serializers.UUIDField(help_text="What the field `upload` of a job is to say.")
    name = serializers.CharField()
    state = serializers.ChoiceField(FolderUploadState.choices, help_text="Jobs may name one that is ready.")
    text = serializers.CharField(help_text="Why it was removed.")
    files = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    piece_bytes = serializers.IntegerField(
        help_text="The size of each piece but the last, which may be smaller."
    )
    pieces = serializers.IntegerField(help_text="How many there are; the first has the number 0.")
    created_at = serializers.DateTimeField()
    ready_at = serializers.DateTimeField(allow_null=True)
    used_at = serializers.DateTimeField(allow_null=True, help_text="When a job last named it.")


class UploadDetailSerializer(UploadSerializer):
    missing = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="The pieces that have not come, of one that is on its way.",
    )
    order = serializers.ListField(
        child=serializers.CharField(),
        help_text="The paths of its files in the order in which their bytes follow each other; of one on its way.",
    )


def _row(row: FolderUpload) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "name": row.name,
        "state": row.state,
        "text": row.text,
        "files": row.files,
        "size_bytes": row.size_bytes,
        "piece_bytes": PIECE_BYTES,
        "pieces": pieces_of(row),
        "created_at": moment(row.created_at),
        "ready_at": moment(row.ready_at),
        "used_at": moment(row.used_at),
    }


class PieceParser(BaseParser):
    """Bytes as they are, for at most one piece."""

    media_type = "application/octet-stream"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Any = None
    ) -> dict[str, bytes]:
        most = min(settings.DATA_UPLOAD_MAX_MEMORY_SIZE, PIECE_BYTES)
        raw: bytes = stream.read(most + 1)
        if len(raw) > most:
            raise BadInput(too_big(most))
        return {"data": raw}


class Uploads(ApiView):
    """`/uploads`"""

    queryset = FolderUpload.objects.none()
    serializer_class: Any = UploadSerializer
    pagination_class = NewestFirst
    required_scopes = _SCOPES
    location = "/api/v1/uploads/{id}"
    schema_tags = ["uploads"]

    @extend_schema(operation_id="uploads_list", responses=UploadSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Your uploads, newest first, also those that were removed while a job still names them."""
        page = self.paginate_queryset(verbs.uploads_of(person(request))) or ()
        return self.get_paginated_response([_row(row) for row in page])

    @extend_schema(
        operation_id="uploads_begin", request=UploadRequestSerializer, responses={201: UploadDetailSerializer}
    )
    def post(self, request: Request) -> Response:
        """Announce a folder: its files with their sizes come first, so that what is refused is refused at once."""
        row, manifest = verbs.begin(body=body_of(request), by=person(request))
        order = [one["path"] for one in manifest["files"]]
        said = {**_row(row), "missing": list(range(pieces_of(row))), "order": order}
        return Response(said, status=status.HTTP_201_CREATED)


class UploadDetail(ApiView):
    """`/uploads/{upload}`"""

    serializer_class: Any = UploadDetailSerializer
    required_scopes = _SCOPES
    schema_tags = ["uploads"]

    @extend_schema(operation_id="uploads_detail", parameters=[_ID], responses=UploadDetailSerializer)
    def get(self, request: Request, upload: UUID) -> Response:
        """One upload; of one on its way, what is missing: an upload that broke off goes on there."""
        row = verbs.upload_of(str(upload), by=person(request))
        comes = row.state == FolderUploadState.RECEIVING
        order = verbs.order_of(row) if comes else []
        return Response({**_row(row), "missing": verbs.missing(row) if comes else [], "order": order})

    @extend_schema(
        operation_id="uploads_delete",
        parameters=[_ID],
        request=None,
        responses={204: OpenApiResponse(description="Its bytes are removed. This cannot be undone.")},
    )
    def delete(self, request: Request, upload: UUID) -> Response:
        """Remove an upload, unless a job that has not ended needs it; this cannot be undone."""
        by = person(request)
        verbs.delete(row=verbs.upload_of(str(upload), by=by), by=by)
        return Response(status=status.HTTP_204_NO_CONTENT)


class UploadPiece(ApiView):
    """`/uploads/{upload}/pieces/{number}`"""

    serializer_class: Any = UploadSerializer
    parser_classes = (PieceParser,)
    required_scopes = _SCOPES
    schema_tags = ["uploads"]

    @extend_schema(
        operation_id="uploads_piece",
        parameters=[_ID, OpenApiParameter("number", int, OpenApiParameter.PATH), _SHA256],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={
            204: OpenApiResponse(description="The piece is stored; the same one again changes nothing.")
        },
    )
    def put(self, request: Request, upload: UUID, number: int) -> Response:
        """Send one piece, in any order."""
        data: bytes = body_of(request, optional=True).get("data", b"")
        said = request.query_params.get("sha256", "")
        if said and hashlib.sha256(data).hexdigest() != said.lower():
            raise InvalidInput(
                message=f"The checksum of piece {number} is wrong.",
                code="wrong-piece",
                way_out="Send the piece again.",
            )
        verbs.take_piece(row=verbs.upload_of(str(upload), by=person(request)), number=number, data=data)
        return Response(status=status.HTTP_204_NO_CONTENT)


class FinishUpload(ApiView):
    """`/uploads/{upload}/finish`"""

    serializer_class: Any = UploadSerializer
    required_scopes = _SCOPES
    schema_tags = ["uploads"]

    @extend_schema(operation_id="uploads_finish", parameters=[_ID], request=None, responses=UploadSerializer)
    def post(self, request: Request, upload: UUID) -> Response:
        """All pieces have come: jobs may name the upload from now on. A second time changes nothing."""
        return Response(_row(verbs.finish(row=verbs.upload_of(str(upload), by=person(request)))))
