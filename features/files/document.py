"""Files and uploads in the API document."""

from uuid import UUID

from openai.types import FileObject, Upload
from openai.types.uploads import UploadPart

from features.files.objects import (
    LONGEST_LIFETIME,
    SHORTEST_LIFETIME,
    UPLOADED,
    FilePurpose,
    file_object,
)
from features.files.routes import LIST_SIZES, MAX_PAGE
from features.files.uploads import MAX_PARTS
from features.reference import examples
from features.reference.schemas import (
    BYTES,
    PAGING,
    STRING,
    Deployment,
    Json,
    about_id,
    array_of,
    deleted,
    form_body,
    header_parameter,
    id_of,
    integer,
    one_of_texts,
    operation,
    page_of,
    query_parameter,
    raw_response,
    request_body,
    response,
    sdk_object,
)
from models.db.queries.file_contents import FileRow
from models.ids import FILE, UPLOAD, UPLOAD_PART
from models.wire.api_schema import NULL, Schema, const, nullable, object_schema, reference

PATHS = {"file_id": about_id(FILE), "upload_id": about_id(UPLOAD)}
CODES = {
    "invalid_range": "the range begins behind the end of the file",
    "too_many_parts": "the upload has received too many parts, or too many bytes",
    "upload_not_pending": "the upload was completed or cancelled, or has expired",
    "files_not_stored": "this server stores no files",
}
FILE_ID = id_of(FILE)
EXAMPLE_ID = UUID("019abc12de347000d1b2c3d4e5f60722")
EXAMPLE = file_object(
    FileRow(EXAMPLE_ID, "tides.txt", "user_data", 1200, "text/plain", examples.TIME, None)
)
LIFETIME = integer(SHORTEST_LIFETIME, LONGEST_LIFETIME)
"""Seconds of `expires_after`."""


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    return {**_file_operations(), **_upload_operations()}


def _file_operations() -> dict[str, Json]:
    file = response("The file.", "File", examples={"a text": EXAMPLE})
    sizes = {"type": "integer", **LIST_SIZES, "default": LIST_SIZES["maximum"]}
    content = {"*/*": {"schema": BYTES}}
    part = raw_response("The range of its bytes that `Range` names.", content)
    return {
        "create_file": operation(
            "Upload a file", file, 408, body=form_body("CreateFile"), once=True
        ),
        "list_files": operation(
            "List the files",
            response("A page of files.", "FileList"),
            parameters=[
                query_parameter("purpose", STRING, "Only files of this purpose."),
                query_parameter("limit", sizes, f"Files on a page; it has at most {MAX_PAGE}."),
                *PAGING[1:],
            ],
        ),
        "retrieve_file": operation("Get a file", file),
        "delete_file": operation(
            "Delete a file", response("Deleted, with its content.", "DeletedFile")
        ),
        "file_content": operation(
            "Get the content of a file",
            raw_response("The bytes of the file.", content),
            416,
            others={"206": part},
            parameters=[header_parameter("Range", STRING, "One range of bytes: `bytes=0-999`.")],
        ),
    }


def _upload_operations() -> dict[str, Json]:
    upload = response("The upload.", "Upload")
    parts = {"part_ids": ["part_019abc12de347000d1b2c3d4e5f60723"]}
    begin = {"bytes": 1200, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    return {
        "create_upload": operation(
            "Begin an upload in parts",
            upload,
            body=request_body("CreateUpload", {"a text": begin}),
            once=True,
        ),
        "add_upload_part": operation(
            "Upload a part",
            response("The part.", "UploadPart"),
            408,
            body=form_body("AddUploadPart"),
            once=True,
        ),
        "complete_upload": operation(
            "Make a file of an upload",
            upload,
            body=request_body("CompleteUpload", {"one part": parts}),
            once=True,
        ),
        "cancel_upload": operation("Cancel an upload", upload, 400),
    }


def components(_deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    purpose = one_of_texts(FilePurpose)
    return {
        **_request_bodies(),
        "File": sdk_object(
            FileObject, id=FILE_ID, purpose=purpose, status=const("processed"), status_details=NULL
        ),
        "FileList": page_of("File"),
        "DeletedFile": deleted("file", FILE_ID),
        "Upload": sdk_object(Upload, purpose=purpose, file=nullable(reference("File"))),
        "UploadPart": sdk_object(UploadPart),
    }


def _request_bodies() -> dict[str, Schema]:
    purpose = one_of_texts(UPLOADED)
    part_ids = array_of(id_of(UPLOAD_PART), 1, MAX_PARTS) | {"uniqueItems": True}
    expiry = object_schema({"anchor": const("created_at"), "seconds": LIFETIME})
    form = object_schema(
        {"file": BYTES, "purpose": purpose},
        {
            "expires_after[anchor]": one_of_texts(("created_at",)),
            "expires_after[seconds]": LIFETIME,
        },
    )
    return {
        "CreateFile": form | {"additionalProperties": False},
        "CreateUpload": object_schema(
            {
                "bytes": {"type": "integer", "minimum": 1},
                "filename": STRING,
                "mime_type": STRING,
                "purpose": purpose,
            },
            {"expires_after": nullable(expiry)},
        ),
        "AddUploadPart": object_schema({"data": BYTES}),
        "CompleteUpload": object_schema({"part_ids": part_ids}, {"md5": nullable(STRING)}),
    }
