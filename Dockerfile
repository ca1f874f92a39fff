# syntax=docker/dockerfile:1
# The image of Tollgate: about 30 MB, without a shell. The root file system can be read-only.
#
#     docker build --build-arg TOLLGATE_COMMIT=$(git rev-parse --short=12 HEAD) --tag tollgate .
#     docker run --read-only --publish 8080:8080 tollgate

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
COPY . .
# The commit that `tollgate --version` names: the repository isn't copied.
ARG TOLLGATE_COMMIT=""
RUN cargo build --profile dist --locked --bin tollgate \
    && strip --strip-all target/dist/tollgate \
    && scripts/image-root.sh target/dist/tollgate /image

FROM scratch
COPY --from=build /image/ /
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
