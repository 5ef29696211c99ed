# abridge in a container: docker build -t abridge . && docker run -p 127.0.0.1:8787:8787 abridge

FROM rust:1.95.0-alpine AS build
# Rust links statically there. zstd, mimalloc and the cryptography of ring need the headers of musl, and the scripts bash and Python.
RUN apk add --no-cache bash musl-dev python3
WORKDIR /src
COPY . .
ARG TARGETARCH
RUN scripts/release.sh && install -D target/dist/abridge "/out/$TARGETARCH/abridge"
# The store is a volume, so that it outlives the container; whoever runs abridge there may write to it.
RUN install -d -m 700 /out/state/abridge

# One file, and no shell. Certificates of authorities are in it, for machines that have none.
FROM scratch
ARG TARGETARCH
COPY --from=build /out/${TARGETARCH}/abridge /usr/local/bin/abridge
COPY --from=build --chown=65532:65532 /out/state /var/lib
VOLUME /var/lib/abridge
# A number and no name, so that Kubernetes can see that it is not root. A proxy.toml is read from the working directory.
USER 65532:65532
WORKDIR /etc/abridge
EXPOSE 8787
# In a container, the loopback address reaches nobody: whoever publishes the port decides who may come.
ENV ABRIDGE__SERVER__LISTEN=0.0.0.0:8787
ENV XDG_STATE_HOME=/var/lib
HEALTHCHECK --interval=10s --timeout=4s --start-period=2s CMD ["abridge", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["abridge"]
CMD ["serve"]
