# One image for every role; docker-compose.yml says which command each service runs.
FROM python:3.11-slim-bookworm

LABEL org.opencontainers.image.title="Backburner" \
      org.opencontainers.image.description="A self-hosted server for the OpenAI Responses API, built for background work that survives its machines." \
      org.opencontainers.image.licenses="MIT"

# The number is fixed, so that files on a volume or a rule of the platform can name it. No home, no shell: nobody logs in.
RUN groupadd --gid 10001 backburner && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin backburner

WORKDIR /app

# Before the code, so that a change of the code leaves this layer alone. Wheels only: an sdist would run its own code, and need a compiler.
COPY requirements-production.lock ./
RUN pip install --no-cache-dir --no-deps --only-binary=:all: --require-hashes --requirement requirements-production.lock

COPY alembic.ini LICENSE ./
COPY cli/ cli/
COPY migrations/ migrations/
COPY models/ models/
COPY web/ web/
COPY worker/ worker/

# Compiled now, since the file system is read-only later. The console script, without the build tools that installing a project takes.
RUN python -m compileall -q --invalidation-mode unchecked-hash . && \
    printf '#!/bin/sh\nexec python -m cli.main "$@"\n' > /usr/local/bin/backburner && \
    chmod 755 /usr/local/bin/backburner

# PYTHONPATH: `backburner` works from any folder.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONPATH=/app

USER 10001:10001
EXPOSE 8000

# Whatever the role: whether this container's process is alive in the eyes of the database.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["python", "-m", "cli.main", "health"]

# In exec form, so that SIGTERM reaches Python.
ENTRYPOINT ["python", "-m"]
CMD ["web", "--host", "0.0.0.0", "--port", "8000"]
