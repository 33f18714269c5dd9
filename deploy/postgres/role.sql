-- Runs once, when the container of docker-compose.yml makes a new volume: the role and the database of
-- the server. The role owns its database and is no superuser. The superuser loses its password, so it
-- can be used inside the container only. Only a superuser can make pgvector, which vector stores need.
\getenv password POSTGRES_PASSWORD
CREATE ROLE backburner LOGIN PASSWORD :'password';
CREATE DATABASE backburner OWNER backburner;
ALTER ROLE postgres PASSWORD NULL;
\connect backburner
SELECT 'CREATE EXTENSION vector' FROM pg_available_extensions WHERE name = 'vector' \gexec
