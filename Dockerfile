# One image for all services; docker-compose.yml has the command of each.
# docs/security.md, "Supply chain", says how to name the base by its digest.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}

LABEL org.opencontainers.image.title="Backburner" \
      org.opencontainers.image.description="A self-hosted server for the OpenAI Responses API, built for background work that survives its machines." \
      org.opencontainers.image.licenses="MIT"

# A fixed number, so that volumes and rules of the platform can name it. No home and no shell, because
# no person logs in.
RUN groupadd --gid 10001 backburner && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin backburner && \
    install -d -o 10001 -g 10001 -m 700 /files

WORKDIR /app

# Before the code, so that a change of the code keeps this layer. Wheels only: an sdist would run its
# own code and need a compiler.
COPY requirements-production.lock ./
RUN pip install --no-cache-dir --no-deps --only-binary=:all: --require-hashes --requirement requirements-production.lock

COPY alembic.ini LICENSE ./
COPY cli/ cli/
COPY migrations/ migrations/
COPY models/ models/
COPY web/ web/
COPY worker/ worker/

# Compiled now, because the file system is read-only later. The script `backburner` is written here,
# because installing the project would need build tools.
RUN python -m compileall -q --invalidation-mode unchecked-hash . && \
    printf '#!/bin/sh\nexec python -m cli.main "$@"\n' > /usr/local/bin/backburner && \
    chmod 755 /usr/local/bin/backburner

# PYTHONPATH lets `backburner` work in any folder.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONPATH=/app

USER 10001:10001
EXPOSE 8000

# Healthy: this container's process has a valid lease in the database.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["python", "-m", "cli.main", "health"]

# Exec form, so that SIGTERM reaches Python.
ENTRYPOINT ["python", "-m"]
CMD ["web", "--host", "0.0.0.0", "--port", "8000"]
