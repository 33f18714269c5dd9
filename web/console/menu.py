"""The menu: the path of each page below the console, and its name."""

MENU = (
    ("", "Overview"),
    ("/responses", "Responses"),
    ("/batches", "Batches"),
    ("/workers", "Workers"),
    ("/projects", "Projects"),
    ("/webhooks", "Webhooks"),
    ("/files", "Files"),
)
