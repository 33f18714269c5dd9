"""Batches in the API document."""

from uuid import UUID

from openai.types import Batch, BatchError
from openai.types.batch_request_counts import BatchRequestCounts
from openai.types.batch_usage import BatchUsage

from features.batches.lines import ENDPOINTS
from features.batches.queries import BatchRow
from features.batches.web import batch_object
from features.files import document as files
from features.reference import examples, schemas
from models.wire.api_schema import Schema, const, nullable, object_schema
from models.wire.checks.parameters import METADATA

PATHS = {"batch_id": schemas.about_id("batch_")}


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    batch = schemas.response("The batch.", "Batch", examples={"a batch": _example()})
    day = {"input_file_id": files.EXAMPLE["id"], "endpoint": "/v1/responses"}
    return {
        "create_batch": schemas.operation(
            "Create a batch",
            batch,
            404,
            body=schemas.request_body("CreateBatch", {"a day": day | {"completion_window": "24h"}}),
            once=True,
        ),
        "list_batches": schemas.operation(
            "List the batches",
            schemas.response("A page of batches, the newest first.", "BatchList"),
            404,
            parameters=[schemas.PAGING[0], schemas.PAGING[2]],
        ),
        "retrieve_batch": schemas.operation("Get a batch", batch),
        "cancel_batch": schemas.operation("Cancel a batch", batch, 400),
    }


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    errors = schemas.list_of(
        schemas.sdk_object(BatchError, code=schemas.STRING, message=schemas.STRING)
    )
    expiry = object_schema({"anchor": const("created_at"), "seconds": files.LIFETIME})
    return {
        "CreateBatch": schemas.strict(
            {
                "input_file_id": schemas.STRING,
                "endpoint": schemas.one_of_texts(ENDPOINTS),
                "completion_window": schemas.matching("[1-9][0-9]{0,5}[smhd]"),
            },
            {"metadata": METADATA.schema(deployment.sent), "output_expires_after": expiry},
        ),
        "Batch": schemas.sdk_object(
            Batch,
            id=schemas.id_of("batch_"),
            endpoint=schemas.one_of_texts(ENDPOINTS),
            errors=nullable(errors),
            input_file_id=files.FILE_ID,
            output_file_id=nullable(files.FILE_ID),
            error_file_id=nullable(files.FILE_ID),
            request_counts=schemas.sdk_object(BatchRequestCounts),
            usage=schemas.sdk_object(BatchUsage),
            expires_at=schemas.SECONDS,
            metadata=nullable(METADATA.schema(deployment.stored)),
        ),
        "BatchList": schemas.page_of("Batch"),
    }


def _example() -> schemas.Json:
    """A batch that has ended."""
    start = examples.TIME
    row = BatchRow(
        id=UUID("019abc12de347000d1b2c3d4e5f60733"),
        endpoint="/v1/responses",
        input_file_id=files.EXAMPLE_ID,
        completion_window="24h",
        metadata={"topic": "tides"},
        status="completed",
        model="demo",
        errors=None,
        created_at=start,
        expires_at=start + 86_400,
        in_progress_at=start + 1,
        finalizing_at=start + 60,
        cancelling_at=None,
        ended_at=start + 60,
        total=2,
        completed=2,
        failed=0,
        input_tokens=20,
        cached_tokens=0,
        output_tokens=10,
        reasoning_tokens=0,
        output_file_id=UUID("019abc12de347000d1b2c3d4e5f60744"),
        error_file_id=None,
    )
    return batch_object(row)
