"""The admin API in the document: projects, keys, service accounts, usage (docs/projects.md)."""

from collections.abc import Iterable, Mapping

from openai.types.admin.organization import AdminAPIKey, Project
from openai.types.admin.organization.projects import ProjectAPIKey, ProjectServiceAccount
from openai.types.admin.organization.projects.service_account_create_response import (
    APIKey as ServiceAccountCreateResponseAPIKey,
)

from features.reference.schemas import (
    ADMIN,
    BOOLEAN,
    COUNT,
    OBJECT,
    PAGING,
    SECONDS,
    STRING,
    STRINGS,
    TRUE,
    Deployment,
    Json,
    about_id,
    array_of,
    described,
    integer,
    numbered_page_of,
    one_of_texts,
    operation,
    page_of,
    query_parameter,
    request_body,
    response,
    sdk_object,
    strict,
    text,
)
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
from models.wire.proxied_usage import UsageKind

PATHS = {
    "project_id": about_id(f"{PROJECT}_"),
    "key_id": about_id(f"{API_KEY}_"),
    "account_id": about_id(f"{SERVICE_ACCOUNT}_"),
}
NAME = text(1, MAX_NAME)


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    named = {**_project_operations(), **_key_operations(), **_account_operations()}
    named |= {f"usage_{kind.value}": _usage(kind) for kind in UsageKind}
    named["costs"] = _costs()
    return admin_operations(named)


def components(_deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    return {**_request_bodies(), **_objects(), **_usage_objects()}


# --- operations ---


def admin_operations(named: Mapping[str, Json]) -> dict[str, Json]:
    """Operations by the names of their functions: for keys of admins only."""
    return {name: {**each, "security": [{ADMIN: []}]} for name, each in named.items()}


def admin_list(summary: str, name: str, *parameters: Json) -> Json:
    """An operation that lists objects, whose component is `name`, in pages."""
    page = response("A page.", f"{name}List")
    return operation(summary, page, 404, parameters=[*parameters, *PAGING])


def admin_change(
    summary: str,
    answer: Json,
    body: str,
    example: Json,
    *,
    once: bool = False,
    body_required: bool = True,
) -> Json:
    """An operation that makes (`once`) or changes something. `body`: the component of its body."""
    sent = request_body(body, {"an example": example}, required=body_required)
    return operation(summary, answer, body=sent, once=once)


def _project_operations() -> dict[str, Json]:
    project = response("The project.", "OrganizationProject")
    archived = query_parameter(
        "include_archived", BOOLEAN | {"default": False}, "Also archived projects."
    )
    return {
        "list_projects": admin_list("List projects", "OrganizationProject", archived),
        "create_project": admin_change(
            "Create a project", project, "CreateOrganizationProject", {"name": "team-a"}, once=True
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
    key = response("The key.", "ProjectApiKey")
    admin_key = response("The key.", "AdminApiKey")
    deleted = response("It is invalid from now on.", "DeletedOfOrganization")
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
            response("The key, with its value.", "CreatedAdminApiKey"),
            "CreateAdminApiKey",
            {"name": "operations"},
            once=True,
        ),
        "retrieve_admin_key": operation("Get a key of an admin", admin_key),
        "delete_admin_key": operation("Revoke a key of an admin", deleted),
    }


def _account_operations() -> dict[str, Json]:
    account = response("The service account.", "ServiceAccount")
    return {
        "list_service_accounts": admin_list("List service accounts", "ServiceAccount"),
        "create_service_account": admin_change(
            "Create a service account",
            response("It, with its first key.", "CreatedServiceAccount"),
            "CreateServiceAccount",
            {"name": "ci"},
            once=True,
        ),
        "retrieve_service_account": operation("Get a service account", account),
        "create_service_account_key": admin_change(
            "Create a key of a service account",
            response("The key, with its value.", "ServiceAccountKey"),
            "CreateServiceAccountKey",
            {"scopes": ["read"]},
            once=True,
        ),
        "delete_service_account": operation(
            "Delete a service account and its keys", response("Deleted.", "DeletedOfOrganization")
        ),
    }


def _usage(kind: UsageKind) -> Json:
    return operation(
        f"Usage: {kind.value.replace('_', ' ')}",
        response("A page of buckets of time.", "UsagePage"),
        parameters=_bucket_parameters(WIDTHS, GROUPS[kind], 31, "models"),
    )


def _costs() -> Json:
    return operation(
        "Costs",
        response("A page of days.", "CostPage"),
        parameters=_bucket_parameters(COST_WIDTHS, COST_GROUPS, 180, "line_items"),
    )


def _bucket_parameters(
    widths: Iterable[str], groups: Iterable[str], most_buckets: int, models: str
) -> list[Json]:
    """`models`: the parameter with names of models."""
    time = integer(0, LATEST)
    start = query_parameter("start_time", time, "In seconds since the epoch.")
    return [
        {**start, "required": True},
        query_parameter("end_time", time, "In seconds since the epoch; without it: now."),
        query_parameter(
            "bucket_width", one_of_texts(widths) | {"default": "1d"}, "The width of a bucket."
        ),
        query_parameter("limit", integer(1, most_buckets), "Buckets."),
        query_parameter("group_by", array_of(one_of_texts(groups)), "What sums are apart for."),
        *(
            query_parameter(name, STRINGS, "Only of these.")
            for name in ("project_ids", "api_key_ids", models)
        ),
    ]


# --- schemas ---


def _request_bodies() -> dict[str, Schema]:
    lifetime = integer(1, MAX_SECONDS)
    project: dict[str, Schema] = {
        "weight": integer(1, MAX_WEIGHT),
        "policy": described(OBJECT, "A JSON Merge Patch of the policy."),
    }
    grant: dict[str, Schema] = {
        "expires_in_seconds": lifetime,
        "scopes": array_of(one_of_texts(PROJECT_SCOPES)),
        "allowed_models": STRINGS,
    }
    return {
        "CreateOrganizationProject": strict({"name": NAME}, project),
        "UpdateOrganizationProject": strict({}, {"name": NAME, **project}),
        "UpdateProjectApiKey": strict({}, grant),
        "CreateAdminApiKey": strict({"name": NAME}, {"expires_in_seconds": lifetime}),
        "CreateServiceAccount": strict(
            {"name": NAME}, {**grant, "create_service_account_only": BOOLEAN}
        ),
        "CreateServiceAccountKey": strict({}, {"name": NAME, **grant}),
    }


def _objects() -> dict[str, Schema]:
    grant: dict[str, Schema] = {
        "name": STRING,
        "scopes": array_of(one_of_texts(Scope)),
        "allowed_models": nullable(STRINGS),
        "owner": OBJECT,
    }
    account = sdk_object(ProjectServiceAccount, role=const("member"))
    listed: dict[str, Schema] = {
        "OrganizationProject": sdk_object(
            Project,
            ("external_key_id", "residency"),
            name=STRING,
            status=one_of_texts(("active", "archived")),
            weight=COUNT,
            policy=OBJECT,
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
        "DeletedOfOrganization": object_schema({"id": STRING, "object": STRING, "deleted": TRUE}),
    }


def _usage_objects() -> dict[str, Schema]:
    labels = ("project_id", "user_id", "api_key_id", "model", "upstream")
    counts = ("input_tokens", "output_tokens", "num_model_requests")
    result = object_schema(
        {
            "object": one_of_texts(f"organization.usage.{kind.value}.result" for kind in UsageKind),
            **dict.fromkeys(counts, COUNT),
            **dict.fromkeys(labels, nullable(STRING)),
        },
        {
            **dict.fromkeys(
                (*UNITS.values(), "num_sessions", "input_cached_tokens", "output_reasoning_tokens"),
                COUNT,
            ),
            "completion_window": nullable(one_of_texts(CompletionWindow)),
            "price_factor": described(
                nullable({"type": "number"}),
                "The factor of that window's price, if sums are apart for windows.",
            ),
        },
    )
    cost = object_schema(
        {
            "object": const("organization.costs.result"),
            "amount": nullable(object_schema({"value": {"type": "number"}, "currency": STRING})),
            **dict.fromkeys(
                ("line_item", "project_id", "user_id", "api_key_id", "upstream"), nullable(STRING)
            ),
            "quantity": nullable({"type": "number"}),
            "num_requests_without_cost": COUNT,
        }
    )
    return {
        "UsageResult": result,
        "CostResult": cost,
        "UsageBucket": _bucket("UsageResult"),
        "CostBucket": _bucket("CostResult"),
        "UsagePage": numbered_page_of(reference("UsageBucket"), "page"),
        "CostPage": numbered_page_of(reference("CostBucket"), "page"),
    }


def _bucket(result: str) -> Schema:
    return object_schema(
        {
            "object": const("bucket"),
            "start_time": SECONDS,
            "end_time": SECONDS,
            "results": array_of(reference(result)),
        }
    )
