"""The menu: the path of each page below the console, and its name."""

MENU = (
    ("", "Overview"),
    ("/activity", "Activity"),
    ("/responses", "Responses"),
    ("/batches", "Batches"),
    ("/workers", "Workers"),
    ("/upstreams", "Upstreams"),
    ("/projects", "Projects"),
    ("/webhooks", "Webhooks"),
    ("/files", "Files"),
    ("/vector-stores", "Vector stores"),
    ("/usage", "Usage"),
)
