"""Sixteen MCP servers of 64 tools, and 200 requests for them in other words.

A server has eight nouns and eight verbs. A tool is named and described as such servers do it; a
request says what a model would write when it looks for the tool: other verbs, other nouns, and in
two of three cases the name of the service.
"""

import random

from tests.support.api import JSON

SERVERS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "github": (
        "Source code hosting: repositories, issues, pull requests and CI.",
        {
            "issue": ("an issue of a repository", "bug report in a repo"),
            "pull_request": ("a pull request with its commits", "PR with code changes"),
            "branch": ("a git branch", "git branches"),
            "release": ("a tagged release with notes", "release notes of a version"),
            "workflow_run": ("a run of an Actions workflow", "CI workflow"),
            "gist": ("a gist with code snippets", "code snippet"),
            "label": ("a label for issues", "issue labels"),
            "milestone": ("a milestone with a due date", "milestone due date"),
        },
    ),
    "slack": (
        "Team chat: channels, messages and members.",
        {
            "message": ("a message in a channel", "chat text in a channel"),
            "channel": ("a public or private channel", "channel for a team"),
            "reaction": ("an emoji reaction to a message", "emoji on a message"),
            "reminder": ("a reminder for a member", "remind a person"),
            "user_group": ("a group of members with a handle", "group of people with a handle"),
            "canvas": ("a canvas attached to a channel", "canvas page"),
            "bookmark": ("a bookmark at the top of a channel", "bookmarked link"),
            "huddle": ("an audio huddle", "voice huddle"),
        },
    ),
    "jira": (
        "Issue tracking: tickets, sprints and boards.",
        {
            "ticket": ("a ticket of a project", "task in the tracker"),
            "sprint": ("a sprint of a board", "two week sprint"),
            "board": ("a scrum or kanban board", "kanban board"),
            "epic": ("an epic that groups tickets", "epic of stories"),
            "worklog": ("time logged on a ticket", "hours in the worklog"),
            "component": ("a component of a project", "project component"),
            "version": ("a fix version", "fix version"),
            "filter": ("a saved JQL filter", "saved JQL"),
        },
    ),
    "postgres": (
        "A PostgreSQL database: tables, queries and roles.",
        {
            "table": ("a table and its columns", "relation with columns"),
            "index": ("an index on columns", "index for faster lookups"),
            "view": ("a stored view", "stored view of a join"),
            "role": ("a database role with privileges", "role and its privileges"),
            "schema": ("a schema of the database", "database schema"),
            "extension": ("an installed extension", "extension such as vector"),
            "lock": ("a lock held by a session", "locks that block a session"),
            "backup": ("a logical backup", "backup dump"),
        },
    ),
    "calendar": (
        "Calendars: events, attendees and rooms.",
        {
            "event": ("an event in a calendar", "meeting"),
            "attendee": ("an attendee of an event", "guest of a meeting"),
            "room": ("a bookable meeting room", "conference room"),
            "availability": ("free and busy times", "free busy slots"),
            "recurrence": ("the recurrence rule of an event", "weekly recurrence rule"),
            "holiday": ("a public holiday", "bank holidays"),
            "out_of_office": ("an out of office period", "out of office vacation"),
            "invitation": ("an invitation to an event", "invitation for guests"),
        },
    ),
    "s3": (
        "Object storage: buckets, objects and policies.",
        {
            "object": ("an object in a bucket", "file in a bucket"),
            "bucket": ("a storage bucket", "bucket for storage"),
            "lifecycle_rule": ("a lifecycle rule of a bucket", "lifecycle expiry rule"),
            "presigned_url": ("a presigned URL for an object", "presigned link"),
            "bucket_policy": ("the access policy of a bucket", "access policy of a bucket"),
            "multipart_upload": ("an unfinished multipart upload", "multipart transfer"),
            "object_version": ("a version of an object", "older version of an object"),
            "replication": ("the replication to another region", "replication to a region"),
        },
    ),
    "stripe": (
        "Payments: customers, charges and subscriptions.",
        {
            "customer": ("a paying customer", "customer who pays"),
            "charge": ("a charge of a card", "card charge"),
            "refund": ("a refund of a charge", "money back refund"),
            "subscription": ("a recurring subscription", "monthly subscription"),
            "invoice": ("an invoice with line items", "bill invoice"),
            "payout": ("a payout to a bank account", "payout to the bank"),
            "coupon": ("a discount coupon", "discount code"),
            "dispute": ("a disputed payment", "chargeback dispute"),
        },
    ),
    "kubernetes": (
        "A Kubernetes cluster: pods, deployments and nodes.",
        {
            "pod": ("a pod with its containers", "container pods"),
            "deployment": ("a deployment and its replicas", "replicas of a deployment"),
            "node": ("a node of the cluster", "cluster machine node"),
            "secret": ("a secret of a namespace", "cluster secret"),
            "config_map": ("a config map", "config map values"),
            "ingress": ("an ingress with its hosts", "ingress hosts"),
            "cron_job": ("a cron job", "cron job"),
            "volume_claim": ("a persistent volume claim", "persistent disk claim"),
        },
    ),
    "gmail": (
        "Mail: threads, drafts, labels and filters.",
        {
            "email": ("an email with attachments", "mail with attachment"),
            "thread": ("a thread of emails", "mail conversation thread"),
            "draft": ("a draft that was not sent", "unsent draft"),
            "mail_label": ("a label of the mailbox", "mailbox label"),
            "mail_filter": ("a filter for incoming mail", "filter for incoming mail"),
            "attachment": ("an attachment of an email", "attached file"),
            "signature": ("the signature under emails", "mail signature"),
            "forwarding_address": ("a forwarding address", "forwarding address"),
        },
    ),
    "salesforce": (
        "Customer relations: leads, accounts and opportunities.",
        {
            "lead": ("a sales lead", "sales lead"),
            "account": ("a customer account", "company account"),
            "opportunity": ("an opportunity with its stage", "deal opportunity stage"),
            "contact": ("a contact of an account", "contact person"),
            "campaign": ("a marketing campaign", "marketing campaign"),
            "quote": ("a price quote", "price quote"),
            "case": ("a support case", "support case"),
            "forecast": ("a revenue forecast", "revenue forecast"),
        },
    ),
    "notion": (
        "Notes and wikis: pages, blocks and databases.",
        {
            "page": ("a page of the workspace", "wiki page"),
            "block": ("a block of content in a page", "paragraph block"),
            "wiki_database": ("a database of pages", "database of pages"),
            "template": ("a page template", "page template"),
            "teamspace": ("a teamspace", "teamspace"),
            "page_comment": ("a comment on a page", "remark on a page"),
            "property": ("a property of a database", "property column"),
            "synced_block": ("a synced block", "synced block"),
        },
    ),
    "datadog": (
        "Monitoring: metrics, monitors, logs and dashboards.",
        {
            "metric": ("a metric time series", "metric time series"),
            "monitor": ("a monitor that alerts", "alert monitor"),
            "dashboard": ("a dashboard of graphs", "dashboard with graphs"),
            "log_pipeline": ("a pipeline that parses logs", "log parsing pipeline"),
            "incident": ("an incident with a timeline", "incident timeline"),
            "slo": ("a service level objective", "service level objective"),
            "synthetic_test": ("a synthetic browser test", "synthetic browser check"),
            "downtime": ("a scheduled downtime", "maintenance downtime"),
        },
    ),
    "figma": (
        "Design files: frames, components and styles.",
        {
            "frame": ("a frame of a design", "design frame"),
            "design_component": ("a component of the library", "library component"),
            "style": ("a color or text style", "color style"),
            "prototype": ("a clickable prototype", "clickable prototype"),
            "design_comment": ("a comment in a design", "remark in a design"),
            "variable": ("a design variable", "design token variable"),
            "export": ("an exported image of a frame", "exported picture"),
            "plugin": ("an installed plugin", "installed plugin"),
        },
    ),
    "zendesk": (
        "Customer support: conversations, macros and articles.",
        {
            "support_ticket": ("a ticket of a customer", "customer support ticket"),
            "macro": ("a macro for agents", "agent macro"),
            "help_article": ("an article of the help center", "help center article"),
            "satisfaction_rating": ("a satisfaction rating", "satisfaction score rating"),
            "agent": ("a support agent", "support agent"),
            "trigger": ("a business rule trigger", "business rule"),
            "organization": ("an organization of customers", "customer organization"),
            "sla_policy": ("a policy for response times", "response time policy"),
        },
    ),
    "spotify": (
        "Music: tracks, playlists and playback.",
        {
            "track": ("a track of an album", "song"),
            "playlist": ("a playlist of tracks", "playlist of songs"),
            "album": ("an album of an artist", "music album"),
            "artist": ("an artist", "musician artist"),
            "podcast": ("a podcast show", "podcast show"),
            "playback": ("the playback on a device", "playback device"),
            "queue": ("the queue of next tracks", "queue of next songs"),
            "audiobook": ("an audiobook", "audiobook"),
        },
    ),
    "aws_ec2": (
        "Virtual machines: instances, images and networks.",
        {
            "instance": ("a virtual machine instance", "virtual machine"),
            "machine_image": ("a machine image", "AMI machine image"),
            "volume": ("a block storage volume", "block storage disk"),
            "security_group": ("a security group with rules", "firewall security group"),
            "subnet": ("a subnet of a network", "network subnet"),
            "key_pair": ("an SSH key pair", "SSH keys"),
            "elastic_ip": ("an elastic IP address", "static elastic address"),
            "snapshot": ("a snapshot of a volume", "disk snapshot"),
        },
    ),
}
"""Label -> description, and noun -> (how the server describes it, how a request says it)."""

VERBS = {
    "create": ("Create", "set up a new"),
    "get": ("Get the details of", "look at one"),
    "list": ("List every", "what are all the"),
    "update": ("Update fields of", "change"),
    "delete": ("Delete", "get rid of"),
    "search": ("Search by text for", "find by keyword the"),
    "archive": ("Archive", "move to the archive the"),
    "export_history": ("Export the history of", "download the change log of"),
}
"""Verb -> (how the server describes it, how a request says it)."""


def server_tools(label: str) -> list[JSON]:
    """The tools of a server, as it lists them."""
    return [
        {
            "name": f"{verb}_{noun}",
            "description": f"{does} {about}. Returns the result as JSON with its identifier, the "
            "time of the last change and a link; fails if the caller lacks the permission.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    f"{noun}_id": {"type": "string", "description": "Which one is meant."},
                    "fields": {
                        "type": "object",
                        "description": "Values by the name of the field.",
                        "additionalProperties": {"type": "string"},
                    },
                    "dry_run": {"type": "boolean", "description": "Check only, change nothing."},
                },
                "required": [f"{noun}_id"],
            },
        }
        for noun, (about, _) in SERVERS[label][1].items()
        for verb, (does, _) in VERBS.items()
    ]


def requests() -> list[tuple[str, str, str]]:
    """200 requests: the label and the name of the right tool, and the query."""
    every = [
        (label, f"{verb}_{noun}", f"{wish} {words}{f' in {label}' if number % 3 else ''}")
        for label, (_, nouns) in SERVERS.items()
        for number, (noun, (_, words)) in enumerate(nouns.items())
        for verb, (_, wish) in VERBS.items()
    ]
    return random.Random(39).sample(every, 200)
