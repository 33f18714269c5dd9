"""The admin API in the document: projects, keys, service accounts, usage (docs/projects.md)."""

from openai.types.admin.organization import AdminAPIKey, Project
from openai.types.admin.organization.projects import ProjectAPIKey, ProjectServiceAccount
from openai.types.admin.organization.projects.service_account_create_response import (
    APIKey as ServiceAccountCreateResponseAPIKey,
)

from features.reference.parts import Json, operation, query_parameter, response
from features.reference.schemas import (
    BOOLEAN,
    COUNT,
    SECONDS,
    STRING,
    STRINGS,
    array_of,
    numbered_page_of,
    one_of_texts,
    page_of,
    sdk_object,
)
from features.tenants.bodies import MAX_SECONDS
from features.tenants.document_parts import admin_change, admin_list, admin_operations, strict_body
from features.tenants.routes import PROJECT_SCOPES
from features.tenants.usage_routes import GROUPS, LATEST, UNITS, WIDTHS
from models.projects.changes import MAX_NAME, MAX_WEIGHT
from models.projects.scopes import Scope
from models.wire.api_schema import Schema, const, nullable, object_schema, reference
from models.wire.usage_kind import UsageKind


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    named = {**_project_operations(), **_key_operations(), **_account_operations()}
    named |= {f"usage_{kind.value}": _usage(kind) for kind in UsageKind}
    return admin_operations(named)


def components() -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    return {**_request_bodies(), **_objects(), **_usage_objects()}


# --- operations ---


def _project_operations() -> dict[str, Json]:
    project = {"200": response("The project.", "OrganizationProject")}
    archived = query_parameter(
        "include_archived", {"type": "boolean", "default": False}, "Also archived projects."
    )
    return {
        "list_projects": admin_list("List projects", "OrganizationProject", archived),
        "create_project": admin_change(
            "Create a project", project, "CreateOrganizationProject", {"name": "team-a"}
        ),
        "retrieve_project": operation("Get a project", project),
        "update_project": admin_change(
            "Change a project",
            project,
            "UpdateOrganizationProject",
            {"policy": {"retention": "7d"}},
        ),
        "archive_project": operation(
            "Archive a project: its keys are invalid, for ever", project, 400
        ),
    }


def _key_operations() -> dict[str, Json]:
    key = {"200": response("The key.", "ProjectApiKey")}
    admin_key = {"200": response("The key.", "AdminApiKey")}
    deleted = {"200": response("It is invalid from now on.", "DeletedOfOrganization")}
    return {
        "list_project_keys": admin_list("List the keys of a project", "ProjectApiKey"),
        "retrieve_project_key": operation("Get a key", key),
        "update_project_key": admin_change(
            "Change a key", key, "UpdateProjectApiKey", {"scopes": ["read"]}
        ),
        "delete_project_key": operation("Revoke a key", deleted),
        "list_admin_keys": admin_list("List the keys of admins", "AdminApiKey"),
        "create_admin_key": admin_change(
            "Create a key of an admin",
            {"200": response("The key, with its value.", "CreatedAdminApiKey")},
            "CreateAdminApiKey",
            {"name": "operations"},
        ),
        "retrieve_admin_key": operation("Get a key of an admin", admin_key),
        "delete_admin_key": operation("Revoke a key of an admin", deleted),
    }


def _account_operations() -> dict[str, Json]:
    account = {"200": response("The service account.", "ServiceAccount")}
    return {
        "list_service_accounts": admin_list("List service accounts", "ServiceAccount"),
        "create_service_account": admin_change(
            "Create a service account",
            {"200": response("It, with its first key.", "CreatedServiceAccount")},
            "CreateServiceAccount",
            {"name": "ci"},
        ),
        "retrieve_service_account": operation("Get a service account", account),
        "create_service_account_key": admin_change(
            "Create a key of a service account",
            {"200": response("The key, with its value.", "ServiceAccountKey")},
            "CreateServiceAccountKey",
            {"scopes": ["read"]},
        ),
        "delete_service_account": operation(
            "Delete a service account and its keys",
            {"200": response("Deleted.", "DeletedOfOrganization")},
        ),
    }


def _usage(kind: UsageKind) -> Json:
    time: Schema = {"type": "integer", "minimum": 0, "maximum": LATEST}
    groups = array_of(one_of_texts(GROUPS[kind]))
    start = query_parameter("start_time", time, "In seconds since the epoch.")
    return operation(
        f"Usage: {kind.value.replace('_', ' ')}",
        {"200": response("A page of buckets of time.", "UsagePage")},
        parameters=[
            {**start, "required": True},
            query_parameter("end_time", time, "In seconds since the epoch; without it: now."),
            query_parameter(
                "bucket_width",
                {"type": "string", "enum": list(WIDTHS), "default": "1d"},
                "The width of a bucket.",
            ),
            query_parameter("limit", {"type": "integer", "minimum": 1, "maximum": 31}, "Buckets."),
            query_parameter("group_by", groups, "What sums are apart for."),
            *(query_parameter(name, STRINGS, "Only of these.") for name in _USAGE_FILTERS),
        ],
    )


_USAGE_FILTERS = ("project_ids", "api_key_ids", "models")


# --- schemas ---


def _request_bodies() -> dict[str, Schema]:
    name: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
    lifetime: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_SECONDS}
    scopes: Schema = array_of(one_of_texts(PROJECT_SCOPES))
    project: dict[str, Schema] = {
        "weight": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT},
        "policy": {"type": "object", "description": "A JSON Merge Patch of the policy."},
    }
    grant: dict[str, Schema] = {
        "expires_in_seconds": lifetime,
        "scopes": scopes,
        "allowed_models": STRINGS,
    }
    return {
        "CreateOrganizationProject": strict_body({"name": name}, project),
        "UpdateOrganizationProject": strict_body({}, {"name": name, **project}),
        "UpdateProjectApiKey": strict_body({}, grant),
        "CreateAdminApiKey": strict_body({"name": name}, {"expires_in_seconds": lifetime}),
        "CreateServiceAccount": strict_body(
            {"name": name}, {**grant, "create_service_account_only": BOOLEAN}
        ),
        "CreateServiceAccountKey": strict_body({}, {"name": name, **grant}),
    }


def _objects() -> dict[str, Schema]:
    grant: dict[str, Schema] = {
        "name": STRING,
        "scopes": array_of(one_of_texts(Scope)),
        "allowed_models": nullable(STRINGS),
        "owner": {"type": "object"},
    }
    account = sdk_object(ProjectServiceAccount, role=const("member"))
    listed: dict[str, Schema] = {
        "OrganizationProject": sdk_object(
            Project,
            ("external_key_id", "residency"),
            name=STRING,
            status=one_of_texts(("active", "archived")),
            weight=COUNT,
            policy={"type": "object"},
        ),
        "ProjectApiKey": sdk_object(ProjectAPIKey, **grant, owner_project_access=const("active")),
        "AdminApiKey": sdk_object(AdminAPIKey, **grant),
        "ServiceAccount": account,
    }
    return {
        **listed,
        **{f"{name}List": page_of(name) for name in listed},
        "CreatedAdminApiKey": sdk_object(AdminAPIKey, **grant, value=STRING),
        "ServiceAccountKey": sdk_object(
            ServiceAccountCreateResponseAPIKey,
            object=const("organization.project.service_account.api_key"),
            expires_at=nullable(SECONDS),
        ),
        "CreatedServiceAccount": object_schema(
            account["properties"], {"api_key": reference("ServiceAccountKey")}
        ),
        "DeletedOfOrganization": object_schema(
            {"id": STRING, "object": STRING, "deleted": {"type": "boolean", "const": True}}
        ),
    }


def _usage_objects() -> dict[str, Schema]:
    labels = ("project_id", "user_id", "api_key_id", "model", "upstream")
    counts = ("input_tokens", "output_tokens", "num_model_requests")
    result = object_schema(
        {
            "object": one_of_texts(
                [f"organization.usage.{kind.value}.result" for kind in UsageKind]
            ),
            **dict.fromkeys(counts, COUNT),
            **dict.fromkeys(labels, nullable(STRING)),
        },
        dict.fromkeys((*UNITS.values(), "input_cached_tokens", "output_reasoning_tokens"), COUNT),
    )
    bucket = object_schema(
        {
            "object": const("bucket"),
            "start_time": SECONDS,
            "end_time": SECONDS,
            "results": array_of(reference("UsageResult")),
        }
    )
    page = numbered_page_of(reference("UsageBucket"), "page")
    return {"UsageResult": result, "UsageBucket": bucket, "UsagePage": page}
