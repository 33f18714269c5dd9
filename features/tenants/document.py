"""The admin API in the document: projects, keys, service accounts, usage (docs/projects.md)."""

from collections.abc import Iterable, Mapping

from openai.types.admin.organization import AdminAPIKey, Project
from openai.types.admin.organization.projects import ProjectAPIKey, ProjectServiceAccount
from openai.types.admin.organization.projects.service_account_create_response import (
    APIKey as ServiceAccountCreateResponseAPIKey,
)

from features.reference import schemas
from features.tenants.bodies import MAX_SECONDS, PROJECT_SCOPES
from features.tenants.usage_routes import (
    COST_GROUPS,
    COST_WIDTHS,
    GROUPS,
    LATEST,
    UNITS,
    WIDTHS,
)
from models.ids import API_KEY, PROJECT, SERVICE_ACCOUNT
from models.projects.changes import MAX_NAME, MAX_WEIGHT
from models.projects.scopes import Scope
from models.windows import CompletionWindow
from models.wire.api_schema import Schema, const, nullable, object_schema, reference
from models.wire.token_counts import UsageKind

PATHS = {
    "project_id": schemas.about_id(f"{PROJECT}_"),
    "key_id": schemas.about_id(f"{API_KEY}_"),
    "account_id": schemas.about_id(f"{SERVICE_ACCOUNT}_"),
}
NAME = schemas.text(1, MAX_NAME)


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    named = {**_project_operations(), **_key_operations(), **_account_operations()}
    named |= {f"usage_{kind.value}": _usage(kind) for kind in UsageKind}
    named["costs"] = _costs()
    return admin_operations(named)


def components(_deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    return {**_request_bodies(), **_objects(), **_usage_objects()}


# --- operations ---


def admin_operations(named: Mapping[str, schemas.Json]) -> dict[str, schemas.Json]:
    """Operations by the names of their functions: for keys of admins only."""
    return {name: {**each, "security": [{schemas.ADMIN: []}]} for name, each in named.items()}


def admin_list(summary: str, name: str, *parameters: schemas.Json) -> schemas.Json:
    """An operation that lists objects, whose component is `name`, in pages."""
    page = schemas.response("A page.", f"{name}List")
    return schemas.operation(summary, page, 404, parameters=[*parameters, *schemas.PAGING])


def admin_change(
    summary: str,
    answer: schemas.Json,
    body: str,
    example: schemas.Json,
    *,
    once: bool = False,
    body_required: bool = True,
) -> schemas.Json:
    """An operation that makes (`once`) or changes something. `body`: the component of its body."""
    sent = schemas.request_body(body, {"an example": example}, required=body_required)
    return schemas.operation(summary, answer, body=sent, once=once)


def _project_operations() -> dict[str, schemas.Json]:
    project = schemas.response("The project.", "OrganizationProject")
    archived = schemas.query_parameter(
        "include_archived", schemas.BOOLEAN | {"default": False}, "Also archived projects."
    )
    return {
        "list_projects": admin_list("List projects", "OrganizationProject", archived),
        "create_project": admin_change(
            "Create a project", project, "CreateOrganizationProject", {"name": "team-a"}, once=True
        ),
        "retrieve_project": schemas.operation("Get a project", project),
        "update_project": admin_change(
            "Change a project",
            project,
            "UpdateOrganizationProject",
            {"policy": {"retention": "7d"}},
        ),
        "archive_project": schemas.operation(
            "Archive a project: its keys are invalid, for ever", project, 400
        ),
    }


def _key_operations() -> dict[str, schemas.Json]:
    key = schemas.response("The key.", "ProjectApiKey")
    admin_key = schemas.response("The key.", "AdminApiKey")
    deleted = schemas.response("It is invalid from now on.", "DeletedOfOrganization")
    return {
        "list_project_keys": admin_list("List the keys of a project", "ProjectApiKey"),
        "retrieve_project_key": schemas.operation("Get a key", key),
        "update_project_key": admin_change(
            "Change a key", key, "UpdateProjectApiKey", {"scopes": ["read"]}
        ),
        "delete_project_key": schemas.operation("Revoke a key", deleted),
        "list_admin_keys": admin_list("List the keys of admins", "AdminApiKey"),
        "create_admin_key": admin_change(
            "Create a key of an admin",
            schemas.response("The key, with its value.", "CreatedAdminApiKey"),
            "CreateAdminApiKey",
            {"name": "operations"},
            once=True,
        ),
        "retrieve_admin_key": schemas.operation("Get a key of an admin", admin_key),
        "delete_admin_key": schemas.operation("Revoke a key of an admin", deleted),
    }


def _account_operations() -> dict[str, schemas.Json]:
    account = schemas.response("The service account.", "ServiceAccount")
    return {
        "list_service_accounts": admin_list("List service accounts", "ServiceAccount"),
        "create_service_account": admin_change(
            "Create a service account",
            schemas.response("It, with its first key.", "CreatedServiceAccount"),
            "CreateServiceAccount",
            {"name": "ci"},
            once=True,
        ),
        "retrieve_service_account": schemas.operation("Get a service account", account),
        "create_service_account_key": admin_change(
            "Create a key of a service account",
            schemas.response("The key, with its value.", "ServiceAccountKey"),
            "CreateServiceAccountKey",
            {"scopes": ["read"]},
            once=True,
        ),
        "delete_service_account": schemas.operation(
            "Delete a service account and its keys",
            schemas.response("Deleted.", "DeletedOfOrganization"),
        ),
    }


def _usage(kind: UsageKind) -> schemas.Json:
    return schemas.operation(
        f"Usage: {kind.value.replace('_', ' ')}",
        schemas.response("A page of buckets of time.", "UsagePage"),
        parameters=_bucket_parameters(WIDTHS, GROUPS[kind], 31, "models"),
    )


def _costs() -> schemas.Json:
    return schemas.operation(
        "Costs",
        schemas.response("A page of days.", "CostPage"),
        parameters=_bucket_parameters(COST_WIDTHS, COST_GROUPS, 180, "line_items"),
    )


def _bucket_parameters(
    widths: Iterable[str], groups: Iterable[str], most_buckets: int, models: str
) -> list[schemas.Json]:
    """`models`: the parameter with names of models."""
    time = schemas.integer(0, LATEST)
    start = schemas.query_parameter("start_time", time, "In seconds since the epoch.")
    return [
        {**start, "required": True},
        schemas.query_parameter("end_time", time, "In seconds since the epoch; without it: now."),
        schemas.query_parameter(
            "bucket_width",
            schemas.one_of_texts(widths) | {"default": "1d"},
            "The width of a bucket.",
        ),
        schemas.query_parameter("limit", schemas.integer(1, most_buckets), "Buckets."),
        schemas.query_parameter(
            "group_by", schemas.array_of(schemas.one_of_texts(groups)), "What sums are apart for."
        ),
        *(
            schemas.query_parameter(name, schemas.STRINGS, "Only of these.")
            for name in ("project_ids", "api_key_ids", models)
        ),
    ]


# --- schemas ---


def _request_bodies() -> dict[str, Schema]:
    lifetime = schemas.integer(1, MAX_SECONDS)
    project: dict[str, Schema] = {
        "weight": schemas.integer(1, MAX_WEIGHT),
        "policy": schemas.described(schemas.OBJECT, "A JSON Merge Patch of the policy."),
    }
    grant: dict[str, Schema] = {
        "expires_in_seconds": lifetime,
        "scopes": schemas.array_of(schemas.one_of_texts(PROJECT_SCOPES)),
        "allowed_models": schemas.STRINGS,
    }
    return {
        "CreateOrganizationProject": schemas.strict({"name": NAME}, project),
        "UpdateOrganizationProject": schemas.strict({}, {"name": NAME, **project}),
        "UpdateProjectApiKey": schemas.strict({}, grant),
        "CreateAdminApiKey": schemas.strict({"name": NAME}, {"expires_in_seconds": lifetime}),
        "CreateServiceAccount": schemas.strict(
            {"name": NAME}, {**grant, "create_service_account_only": schemas.BOOLEAN}
        ),
        "CreateServiceAccountKey": schemas.strict({}, {"name": NAME, **grant}),
    }


def _objects() -> dict[str, Schema]:
    grant: dict[str, Schema] = {
        "name": schemas.STRING,
        "scopes": schemas.array_of(schemas.one_of_texts(Scope)),
        "allowed_models": nullable(schemas.STRINGS),
        "owner": schemas.OBJECT,
    }
    account = schemas.sdk_object(ProjectServiceAccount, role=const("member"))
    listed: dict[str, Schema] = {
        "OrganizationProject": schemas.sdk_object(
            Project,
            ("external_key_id", "residency"),
            name=schemas.STRING,
            status=schemas.one_of_texts(("active", "archived")),
            weight=schemas.COUNT,
            policy=schemas.OBJECT,
        ),
        "ProjectApiKey": schemas.sdk_object(
            ProjectAPIKey, **grant, owner_project_access=const("active")
        ),
        "AdminApiKey": schemas.sdk_object(AdminAPIKey, **grant),
        "ServiceAccount": account,
    }
    return {
        **listed,
        **{f"{name}List": schemas.page_of(name) for name in listed},
        "CreatedAdminApiKey": schemas.sdk_object(AdminAPIKey, **grant, value=schemas.STRING),
        "ServiceAccountKey": schemas.sdk_object(
            ServiceAccountCreateResponseAPIKey,
            object=const("organization.project.service_account.api_key"),
            expires_at=nullable(schemas.SECONDS),
        ),
        "CreatedServiceAccount": object_schema(
            account["properties"], {"api_key": reference("ServiceAccountKey")}
        ),
        "DeletedOfOrganization": object_schema(
            {"id": schemas.STRING, "object": schemas.STRING, "deleted": schemas.TRUE}
        ),
    }


def _usage_objects() -> dict[str, Schema]:
    labels = ("project_id", "user_id", "api_key_id", "model", "upstream")
    counts = ("input_tokens", "output_tokens", "num_model_requests")
    result = object_schema(
        {
            "object": schemas.one_of_texts(
                f"organization.usage.{kind.value}.result" for kind in UsageKind
            ),
            **dict.fromkeys(counts, schemas.COUNT),
            **dict.fromkeys(labels, nullable(schemas.STRING)),
        },
        {
            **dict.fromkeys(
                (*UNITS.values(), "num_sessions", "input_cached_tokens", "output_reasoning_tokens"),
                schemas.COUNT,
            ),
            "completion_window": nullable(schemas.one_of_texts(CompletionWindow)),
            "price_factor": schemas.described(
                nullable({"type": "number"}),
                "The factor of that window's price, if sums are apart for windows.",
            ),
        },
    )
    cost = object_schema(
        {
            "object": const("organization.costs.result"),
            "amount": nullable(
                object_schema({"value": {"type": "number"}, "currency": schemas.STRING})
            ),
            **dict.fromkeys(
                ("line_item", "project_id", "user_id", "api_key_id", "upstream"),
                nullable(schemas.STRING),
            ),
            "quantity": nullable({"type": "number"}),
            "num_requests_without_cost": schemas.COUNT,
        }
    )
    return {
        "UsageResult": result,
        "CostResult": cost,
        "UsageBucket": _bucket("UsageResult"),
        "CostBucket": _bucket("CostResult"),
        "UsagePage": schemas.numbered_page_of(reference("UsageBucket"), "page"),
        "CostPage": schemas.numbered_page_of(reference("CostBucket"), "page"),
    }


def _bucket(result: str) -> Schema:
    return object_schema(
        {
            "object": const("bucket"),
            "start_time": schemas.SECONDS,
            "end_time": schemas.SECONDS,
            "results": schemas.array_of(reference(result)),
        }
    )
