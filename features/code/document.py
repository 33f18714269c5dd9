"""Containers in the API document."""

from openai.types import ContainerRetrieveResponse
from openai.types.containers import FileRetrieveResponse

from features.code.web import NEW_CONTAINER
from features.reference import schemas
from models.ids import CONTAINER, CONTAINER_FILE
from models.wire.api_schema import Schema, object_schema, one_of

PATHS = {
    "container_id": schemas.about_id(f"{CONTAINER}_"),
    "container_file_id": schemas.about_id(f"{CONTAINER_FILE}_"),
}
CODES = {"container_expired": "the container has expired"}


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    container = schemas.response("The container.", "Container")
    file = schemas.response("The file.", "ContainerFile")
    return {
        "create_container": schemas.operation(
            "Make a container",
            container,
            404,
            body=schemas.request_body("CreateContainer", {"an empty one": {"name": "mine"}}),
            once=True,
        ),
        "list_containers": schemas.operation(
            "List the containers",
            schemas.response("A page.", "ContainerList"),
            parameters=schemas.PAGING,
        ),
        "retrieve_container": schemas.operation("Get a container", container),
        "delete_container": schemas.operation(
            "Delete a container", schemas.response("Deleted, with its files.", "DeletedContainer")
        ),
        "create_container_file": schemas.operation(
            "Add a file to a container", file, 408, body=schemas.form_body("CreateContainerFile")
        ),
        "list_container_files": schemas.operation(
            "List the files of a container",
            schemas.response("A page.", "ContainerFileList"),
            parameters=schemas.PAGING,
        ),
        "retrieve_container_file": schemas.operation("Get a file of a container", file),
        "delete_container_file": schemas.operation(
            "Delete a file of a container", schemas.response("Deleted.", "DeletedContainerFile")
        ),
        "container_file_content": schemas.operation(
            "Get the content of a file of a container",
            schemas.raw_response("The bytes of the file.", {"*/*": {"schema": schemas.BYTES}}),
        ),
    }


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    optional = {name: check.schema(deployment.sent) for name, check in NEW_CONTAINER.items()}
    name = optional.pop("name")
    return {
        "CreateContainer": schemas.strict({"name": name}, optional),
        "CreateContainerFile": object_schema(
            {}, {"file": schemas.BYTES, "file_id": schemas.STRING}
        ),
        "Container": schemas.sdk_object(
            ContainerRetrieveResponse,
            network_policy=one_of(
                {
                    "disabled": object_schema({}),
                    "allowlist": object_schema(
                        {"allowed_domains": schemas.array_of(schemas.STRING)}
                    ),
                }
            ),
        ),
        "ContainerList": schemas.page_of("Container"),
        "DeletedContainer": schemas.deleted("container.deleted", schemas.id_of(f"{CONTAINER}_")),
        "ContainerFile": schemas.sdk_object(FileRetrieveResponse),
        "ContainerFileList": schemas.page_of("ContainerFile"),
        "DeletedContainerFile": schemas.deleted(
            "container.file.deleted", schemas.id_of(f"{CONTAINER_FILE}_")
        ),
    }
