# The service. Runs as an unprivileged user on a read-only filesystem.
# Pin the base by digest where your registry tells it: --build-arg BASE_IMAGE=python:3.11-slim@sha256:…
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
# One image for all that manifests/ runs: the router, the operator, benchmarks. A router alone needs kubernetes,otel,nats.
ARG EXTRAS=kubernetes,otel,nats,operator,tokenizers
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt install.sh ./
COPY extproc extproc
COPY manifests manifests
RUN ./install.sh /opt/extproc "${EXTRAS}"

FROM ${BASE_IMAGE}
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="extproc-router" \
      org.opencontainers.image.description="Prefix-cache-aware routing for vLLM behind Envoy, as an ext_proc service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/extproc /opt/extproc
ENV PATH=/opt/extproc/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 9002 9090
ENTRYPOINT ["extproc"]
CMD ["serve", "--config", "/etc/extproc/extproc.yaml"]
