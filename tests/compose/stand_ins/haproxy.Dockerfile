# Stands in for haproxy:3.0: the same user, place of its settings and signal.
ARG BASE
FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/*
USER haproxy
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
