# syntax=docker/dockerfile:1
# The image of Tollgate: about 23 MB, without a shell. The root file system can be read-only.
#
#     docker build --build-arg TOLLGATE_COMMIT=$(git rev-parse --short=12 HEAD) --tag tollgate .
#     docker run --read-only --publish 8080:8080 tollgate

# `dist` is optimized as packages are, which takes half an hour. With --build-arg BUILD=plain, it takes minutes.
ARG BUILD=dist

FROM rust:1.95-slim-bookworm AS source
WORKDIR /build
COPY . .

FROM source AS plain
# The commit that `tollgate --version` names: the repository isn't copied.
ARG TOLLGATE_COMMIT=""
RUN cargo build --profile dist --locked --bin tollgate \
    && mv target/dist/tollgate tollgate

FROM source AS dist
# What scripts/dist.sh needs. Debian keeps one version of each.
# hadolint ignore=DL3008
RUN rustup component add llvm-tools \
    && apt-get update \
    && apt-get install --yes --no-install-recommends \
        bolt-19 libbolt-19-dev nginx-light nghttp2-client python3 redis-server wrk \
    && rm -rf /var/lib/apt/lists/*
ARG TOLLGATE_COMMIT=""
RUN scripts/dist.sh \
    && mv target/profile/tollgate tollgate

# hadolint ignore=DL3006
FROM ${BUILD} AS files
RUN scripts/strip.sh tollgate stripped \
    && scripts/image-root.sh stripped /image

FROM scratch
COPY --from=files /image/ /
ENV PATH=/usr/local/bin:/bin
# Nothing outside a container can reach its loopback.
ENV TOLLGATE_LISTEN=0.0.0.0:8080
EXPOSE 8080
# A number, because Kubernetes' runAsNonRoot can't check names.
USER 65532:65532
# The gateway completes requests in flight before it ends.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["tollgate", "ready", "--config", "/etc/tollgate/gateway.toml"]
ARG TOLLGATE_COMMIT=""
LABEL org.opencontainers.image.title="Tollgate" \
      org.opencontainers.image.description="An HTTP gateway with exact distributed rate limits over Redis" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${TOLLGATE_COMMIT}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="scratch"
ENTRYPOINT ["tollgate"]
CMD ["run", "--config", "/etc/tollgate/gateway.toml"]
