# One image for every part: `blindtally serve`, `blindtally fleet` and the rest. What is needed to
# build it stays behind in its first stage. Engines without BuildKit build it, too.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
RUN python -m venv --without-pip /opt/blindtally
COPY deploy/requirements deploy/requirements
RUN pip install --no-cache-dir --require-hashes --requirement deploy/requirements/build.txt
# server.txt or dask.txt: `make lock` writes them.
ARG LOCK=server
# Dependencies change less often than code, so they have a separate layer. Their tests and debug
# symbols, a fifth of the layer, are removed.
RUN pip --python /opt/blindtally/bin/python install --no-cache-dir --require-hashes --requirement deploy/requirements/${LOCK}.txt \
 && find /opt/blindtally -depth -type d -name tests -path '*-packages/*' -exec rm -r {} +
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && find /opt/blindtally -type f -name '*.so*' -exec strip --strip-unneeded {} +
COPY README.md LICENSE ./
COPY blindtally blindtally
COPY client client
COPY protocol protocol
COPY secagg secagg
COPY server server
COPY pyproject.toml setup.py ./
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheels . \
 && pip --python /opt/blindtally/bin/python install --no-cache-dir --no-deps --no-index wheels/*.whl
# The list of what the image has from PyPI (CycloneDX), for scanners of vulnerabilities.
RUN cyclonedx-py environment --output-reproducible --output-file /opt/blindtally/sbom.cdx.json /opt/blindtally/bin/python

FROM ${PYTHON_IMAGE}
RUN useradd --create-home --uid 10001 blindtally \
 && install --directory --owner=blindtally /members /registrar
COPY --from=build /opt/blindtally /opt/blindtally
ENV PATH=/opt/blindtally/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/blindtally

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=9)"]
ENTRYPOINT ["blindtally"]
CMD ["serve", "--host", "0.0.0.0", "--behind-proxy"]
