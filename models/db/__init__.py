"""PostgreSQL: connections, tables, and every statement with the type of its rows."""
