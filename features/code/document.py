"""Containers in the API document."""

from openai.types import ContainerRetrieveResponse
from openai.types.containers import FileRetrieveResponse

from features.code.web import NEW_CONTAINER
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
    id_of,
    operation,
    page_of,
    raw_response,
    request_body,
    response,
    sdk_object,
    strict,
)
from models.ids import CONTAINER, CONTAINER_FILE
from models.wire.api_schema import Schema, object_schema, one_of

PATHS = {
    "container_id": about_id(f"{CONTAINER}_"),
    "container_file_id": about_id(f"{CONTAINER_FILE}_"),
}
CODES = {"container_expired": "the container has expired"}


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    container = response("The container.", "Container")
    file = response("The file.", "ContainerFile")
    return {
        "create_container": operation(
            "Make a container",
            container,
            404,
            body=request_body("CreateContainer", {"an empty one": {"name": "mine"}}),
            once=True,
        ),
        "list_containers": operation(
            "List the containers", response("A page.", "ContainerList"), parameters=PAGING
        ),
        "retrieve_container": operation("Get a container", container),
        "delete_container": operation(
            "Delete a container", response("Deleted, with its files.", "DeletedContainer")
        ),
        "create_container_file": operation(
            "Add a file to a container", file, 408, body=form_body("CreateContainerFile")
        ),
        "list_container_files": operation(
            "List the files of a container",
            response("A page.", "ContainerFileList"),
            parameters=PAGING,
        ),
        "retrieve_container_file": operation("Get a file of a container", file),
        "delete_container_file": operation(
            "Delete a file of a container", response("Deleted.", "DeletedContainerFile")
        ),
        "container_file_content": operation(
            "Get the content of a file of a container",
            raw_response("The bytes of the file.", {"*/*": {"schema": BYTES}}),
        ),
    }


def components(deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    optional = {name: check.schema(deployment.sent) for name, check in NEW_CONTAINER.items()}
    name = optional.pop("name")
    return {
        "CreateContainer": strict({"name": name}, optional),
        "CreateContainerFile": object_schema({}, {"file": BYTES, "file_id": STRING}),
        "Container": sdk_object(
            ContainerRetrieveResponse,
            network_policy=one_of(
                {
                    "disabled": object_schema({}),
                    "allowlist": object_schema({"allowed_domains": array_of(STRING)}),
                }
            ),
        ),
        "ContainerList": page_of("Container"),
        "DeletedContainer": deleted("container.deleted", id_of(f"{CONTAINER}_")),
        "ContainerFile": sdk_object(FileRetrieveResponse),
        "ContainerFileList": page_of("ContainerFile"),
        "DeletedContainerFile": deleted("container.file.deleted", id_of(f"{CONTAINER_FILE}_")),
    }
