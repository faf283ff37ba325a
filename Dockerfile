# The service, and with it every command of `extproc`. Runs as an unprivileged user on a read-only filesystem.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY extproc extproc
RUN python3 -m venv /opt/extproc && /opt/extproc/bin/pip install --no-cache-dir '.[otel,operator,nats]'

FROM ${BASE_IMAGE}
COPY --from=build /opt/extproc /opt/extproc
ENV PATH=/opt/extproc/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 9002 9090
ENTRYPOINT ["extproc"]
CMD ["serve", "--config", "/etc/extproc/extproc.yaml"]
