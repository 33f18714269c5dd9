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
from features.reference import examples, schemas
from models.db.queries.file_contents import FileRow
from models.ids import FILE, UPLOAD, UPLOAD_PART
from models.wire.api_schema import NULL, Schema, const, nullable, object_schema, reference

PATHS = {"file_id": schemas.about_id(FILE), "upload_id": schemas.about_id(UPLOAD)}
CODES = {
    "invalid_range": "the range begins behind the end of the file",
    "too_many_parts": "the upload has received too many parts, or too many bytes",
    "upload_not_pending": "the upload was completed or cancelled, or has expired",
    "files_not_stored": "this server stores no files",
}
FILE_ID = schemas.id_of(FILE)
EXAMPLE_ID = UUID("019abc12de347000d1b2c3d4e5f60722")
EXAMPLE = file_object(
    FileRow(EXAMPLE_ID, "tides.txt", "user_data", 1200, "text/plain", examples.TIME, None)
)
LIFETIME = schemas.integer(SHORTEST_LIFETIME, LONGEST_LIFETIME)
"""Seconds of `expires_after`."""


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    return {**_file_operations(), **_upload_operations()}


def _file_operations() -> dict[str, schemas.Json]:
    file = schemas.response("The file.", "File", examples={"a text": EXAMPLE})
    sizes = {"type": "integer", **LIST_SIZES, "default": LIST_SIZES["maximum"]}
    content = {"*/*": {"schema": schemas.BYTES}}
    part = schemas.raw_response("The range of its bytes that `Range` names.", content)
    return {
        "create_file": schemas.operation(
            "Upload a file", file, 408, body=schemas.form_body("CreateFile"), once=True
        ),
        "list_files": schemas.operation(
            "List the files",
            schemas.response("A page of files.", "FileList"),
            parameters=[
                schemas.query_parameter("purpose", schemas.STRING, "Only files of this purpose."),
                schemas.query_parameter(
                    "limit", sizes, f"Files on a page; it has at most {MAX_PAGE}."
                ),
                *schemas.PAGING[1:],
            ],
        ),
        "retrieve_file": schemas.operation("Get a file", file),
        "delete_file": schemas.operation(
            "Delete a file", schemas.response("Deleted, with its content.", "DeletedFile")
        ),
        "file_content": schemas.operation(
            "Get the content of a file",
            schemas.raw_response("The bytes of the file.", content),
            416,
            others={"206": part},
            parameters=[
                schemas.header_parameter(
                    "Range", schemas.STRING, "One range of bytes: `bytes=0-999`."
                )
            ],
        ),
    }


def _upload_operations() -> dict[str, schemas.Json]:
    upload = schemas.response("The upload.", "Upload")
    parts = {"part_ids": ["part_019abc12de347000d1b2c3d4e5f60723"]}
    begin = {"bytes": 1200, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    return {
        "create_upload": schemas.operation(
            "Begin an upload in parts",
            upload,
            body=schemas.request_body("CreateUpload", {"a text": begin}),
            once=True,
        ),
        "add_upload_part": schemas.operation(
            "Upload a part",
            schemas.response("The part.", "UploadPart"),
            408,
            body=schemas.form_body("AddUploadPart"),
            once=True,
        ),
        "complete_upload": schemas.operation(
            "Make a file of an upload",
            upload,
            body=schemas.request_body("CompleteUpload", {"one part": parts}),
            once=True,
        ),
        "cancel_upload": schemas.operation("Cancel an upload", upload, 400),
    }


def components(_deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    purpose = schemas.one_of_texts(FilePurpose)
    return {
        **_request_bodies(),
        "File": schemas.sdk_object(
            FileObject, id=FILE_ID, purpose=purpose, status=const("processed"), status_details=NULL
        ),
        "FileList": schemas.page_of("File"),
        "DeletedFile": schemas.deleted("file", FILE_ID),
        "Upload": schemas.sdk_object(Upload, purpose=purpose, file=nullable(reference("File"))),
        "UploadPart": schemas.sdk_object(UploadPart),
    }


def _request_bodies() -> dict[str, Schema]:
    purpose = schemas.one_of_texts(UPLOADED)
    part_ids = schemas.array_of(schemas.id_of(UPLOAD_PART), 1, MAX_PARTS) | {"uniqueItems": True}
    expiry = object_schema({"anchor": const("created_at"), "seconds": LIFETIME})
    form = object_schema(
        {"file": schemas.BYTES, "purpose": purpose},
        {
            "expires_after[anchor]": schemas.one_of_texts(("created_at",)),
            "expires_after[seconds]": LIFETIME,
        },
    )
    return {
        "CreateFile": form | {"additionalProperties": False},
        "CreateUpload": object_schema(
            {
                "bytes": {"type": "integer", "minimum": 1},
                "filename": schemas.STRING,
                "mime_type": schemas.STRING,
                "purpose": purpose,
            },
            {"expires_after": nullable(expiry)},
        ),
        "AddUploadPart": object_schema({"data": schemas.BYTES}),
        "CompleteUpload": object_schema({"part_ids": part_ids}, {"md5": nullable(schemas.STRING)}),
    }
