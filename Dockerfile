FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
COPY . .
RUN cargo build --profile dist --locked

FROM debian:bookworm-slim
COPY --from=build /build/target/dist/tollgate /usr/local/bin/tollgate
# The root certificates for Redis and upstreams with TLS.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY gateway.toml /etc/tollgate/gateway.toml
# Nothing outside a container can reach its loopback.
ENV TOLLGATE_LISTEN=0.0.0.0:8080
EXPOSE 8080
# A number, because Kubernetes' runAsNonRoot can't check names.
USER 65532:65532
# The gateway completes requests in flight before it ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tollgate"]
CMD ["run", "--config", "/etc/tollgate/gateway.toml"]
