# abridge in a container: docker build -t abridge . && docker run -p 127.0.0.1:8787:8787 abridge

FROM rust:1.95-slim-bookworm AS build
# The image has a C compiler, which zstd and the cryptography of ring need.
WORKDIR /src
COPY . .
RUN scripts/release.sh

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/abridge /usr/local/bin/abridge
# The store is a volume, so that it outlives the container; whoever runs abridge there may write to it.
RUN install --directory --owner=65532 --group=65532 --mode=0700 /var/lib/abridge
VOLUME /var/lib/abridge
# A number and no name, so that Kubernetes can see that it is not root. A proxy.toml is read from the working directory.
USER 65532:65532
WORKDIR /etc/abridge
EXPOSE 8787
# In a container, the loopback address reaches nobody: whoever publishes the port decides who may come.
ENV ABRIDGE__SERVER__LISTEN=0.0.0.0:8787
ENV ABRIDGE__STORE__PATH=/var/lib/abridge/store.redb
HEALTHCHECK --interval=10s --timeout=4s --start-period=2s CMD ["abridge", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["abridge"]
CMD ["serve"]
