"""PostgreSQL: connections, the tables, and every statement."""
