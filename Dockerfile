# The images of all services: `sandbox` for the one that runs code of models, and one for all others.
# docker-compose.yml has the command of each.
# docs/security.md, "Supply chain", says how to move the base to a newer digest.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

# The packages, in a stage of their own, so that what is removed here is in no layer of the image.
FROM ${PYTHON_IMAGE} AS packages
WORKDIR /build

# Before the code, so that a change of the code keeps this layer. Wheels only: an sdist would run its
# own code and need a compiler.
COPY requirements-production.lock ./
RUN pip install --no-cache-dir --no-compile --no-deps --only-binary=:all: --require-hashes --target /packages --requirement requirements-production.lock

# Removed: the descriptions of all services of AWS but S3, tests of libraries, and their type stubs.
# The rest is compiled now, because the file system is read-only later.
RUN find /packages/botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 -exec rm -r {} + && \
    find /packages -type d \( -name tests -o -name test \) -prune -exec rm -r {} + && \
    find /packages -name '*.pyi' -delete && \
    rm -rf /packages/bin && \
    python -m compileall -q -j 2 --invalidation-mode unchecked-hash /packages

# What code of models finds installed (docs/code.md), and a cache of fonts that each session gets.
FROM ${PYTHON_IMAGE} AS code-packages
WORKDIR /build
COPY requirements-code.lock ./
RUN python -m venv /opt/code && \
    /opt/code/bin/pip install --no-cache-dir --no-deps --only-binary=:all: --require-hashes --requirement requirements-code.lock && \
    install -d /opt/code/share/session-home && \
    HOME=/opt/code/share/session-home /opt/code/bin/python -c "import matplotlib.font_manager"

FROM ${PYTHON_IMAGE} AS product

LABEL org.opencontainers.image.title="Backburner" \
      org.opencontainers.image.description="A self-hosted server for the OpenAI Responses API, built for background work that survives its machines." \
      org.opencontainers.image.licenses="MIT"

# A fixed number, so that volumes and rules of the platform can name it. No home and no shell, because
# no person logs in. The script `backburner` is written here, because installing the project would
# need build tools.
RUN groupadd --gid 10001 backburner && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin backburner && \
    install -d -o 10001 -g 10001 -m 700 /files && \
    printf '#!/bin/sh\nexec python -m cli.main "$@"\n' > /usr/local/bin/backburner && \
    chmod 755 /usr/local/bin/backburner

COPY --from=packages /packages /packages

WORKDIR /app
COPY LICENSE requirements-production.lock ./
COPY cli/ cli/
COPY features/ features/
COPY migrations/ migrations/
COPY models/ models/
COPY web/ web/
COPY worker/ worker/
RUN python -m compileall -q --invalidation-mode unchecked-hash .

# PYTHONPATH lets `backburner` work in any folder.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONPATH=/app:/packages

USER 10001:10001
EXPOSE 8000

# Healthy: this container's process has a valid lease in the database.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=4 CMD ["python", "-m", "cli.main", "health"]

# Exec form, so that SIGTERM reaches Python.
ENTRYPOINT ["python", "-m"]
CMD ["web", "--host", "0.0.0.0", "--port", "8000"]

# No capability and no user of its own is needed. /sessions must be a volume with a limit.
FROM product AS sandbox
COPY --from=code-packages /opt/code /opt/code
EXPOSE 8600
HEALTHCHECK NONE
CMD ["cli.main", "sandbox", "--host", "0.0.0.0", "--folder", "/sessions", "--python", "/opt/code/bin/python"]

FROM product
