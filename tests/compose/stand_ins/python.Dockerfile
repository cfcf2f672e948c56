# Stands in for python:3.13-slim: `python` and `pip` of /usr/local, Python's
# headers, and pip's options.
ARG BASE
FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /usr/local
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
CMD ["python"]
