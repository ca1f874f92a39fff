FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
COPY . .
RUN cargo build --profile dist --locked

FROM debian:bookworm-slim
COPY --from=build /build/target/dist/tollgate /usr/local/bin/tollgate
# The roots that a Redis with TLS is trusted by, unless store.tls names another one.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY gateway.toml /etc/tollgate/gateway.toml
# Inside a container loopback is out of everybody's reach.
ENV TOLLGATE_LISTEN=0.0.0.0:8080
EXPOSE 8080
# A number, so that Kubernetes' runAsNonRoot can tell that it isn't root.
USER 65532:65532
# The gateway finishes what is in flight before it ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tollgate"]
CMD ["run", "--config", "/etc/tollgate/gateway.toml"]
