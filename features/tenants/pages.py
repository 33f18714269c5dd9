"""The projects and their keys (project_*.py, key_pages.py), and what was used (usage_pages.py)."""

from features.tenants import key_pages, project_list, project_pages, usage_pages

PAGES = (
    *project_list.PAGES,
    *key_pages.PAGES,
    *project_pages.PAGES,
    *usage_pages.PAGES,
)
