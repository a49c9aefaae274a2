# Farlet's image, as manifests/ runs it: no root, no shell needed, nothing written to its file system.
#
#   docker build -t farlet:dev .
#
# takes the locked versions from the package index that pip is set up for. With no network in the build, put
# Farlet's wheel and those of requirements.lock into wheels/ first; then nothing else is asked:
#
#   pip wheel --require-hashes --requirement requirements.lock --wheel-dir wheels
#   pip wheel --no-deps . --wheel-dir wheels
#
# BASE is any image with python3 (3.11 or newer), its venv module and CA certificates. Both stages use the same,
# so that the virtual environment finds its interpreter where it was made.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
COPY . /src
WORKDIR /src
# pip stays in an environment of its own: the image needs none. It compiles what it installs, since a read-only file
# system could not keep what Python compiles at start. The import finds a package that was left behind.
RUN set -eu; \
    python3 -m venv /opt/pip; \
    python3 -m venv --without-pip /opt/farlet; \
    pip="/opt/pip/bin/pip --python /opt/farlet/bin/python --disable-pip-version-check --no-cache-dir install --quiet"; \
    if ls wheels/*.whl >/dev/null 2>&1; then \
        $pip --no-index --find-links wheels farlet; \
    else \
        $pip --require-hashes --requirement requirements.lock; \
        $pip --no-deps .; \
    fi; \
    cd /; \
    /opt/farlet/bin/farlet version; \
    /opt/farlet/bin/python -c "import app.service, app.remover"

FROM ${BASE}
LABEL org.opencontainers.image.title="farlet" \
      org.opencontainers.image.description="Shows a whole remote Kubernetes cluster as one node of the local cluster" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/farlet /opt/farlet
# Logs appear at once; the file system may be read-only.
ENV PATH=/opt/farlet/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A number, not a name: the kubelet checks runAsNonRoot by number.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/opt/farlet/bin/farlet"]
CMD ["--help"]
