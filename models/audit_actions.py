"""The actions of the audit log. docs/operations.md, "Audit log", lists them all."""

ACTIONS = frozenset(
    (
        *("admin.refuse", "authentication.fail"),
        "batch.cancel",
        *("console.link", "console.login", "console.logout"),
        *("conversation.delete", "conversation.item.delete"),
        *("file.delete", "upload.cancel"),
        *("key.create", "key.revoke", "key.rotate", "key.update"),
        *("project.create", "project.delete", "project.set"),
        *("response.cancel", "response.delete", "response.fail"),
        *("response.requeue", "response.reveal"),
        "secrets.rotate",
        *("service_account.create", "service_account.delete"),
        "upstream.check",
        *("vector_store.batch.cancel", "vector_store.delete", "vector_store.file.delete"),
        *("webhook.create", "webhook.delete", "webhook.disable", "webhook.enable"),
        *("webhook.resend", "webhook.rotate", "webhook.set", "webhook.test"),
        "worker.drain",
    )
)
"""Subject and verb of each. An entry with another one cannot be made."""
