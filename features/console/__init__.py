"""The console: pages for operators (docs/console.md)."""
