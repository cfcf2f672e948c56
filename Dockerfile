# One image for every part: `blindtally serve`, `blindtally fleet` and the rest. What is needed to
# build it stays behind in its first stage. Engines without BuildKit build it, too.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
RUN python -m venv --without-pip /opt/blindtally
COPY pyproject.toml ./
# Of the extras, those that are asked for, with blanks between: more would make the image larger.
ARG EXTRAS="server postgres"
# Dependencies change less often than code, so they have a separate layer. Their tests, a tenth of
# the layer, are removed.
RUN python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *(one for name in sys.argv[1:] for one in p["optional-dependencies"][name]), sep="\n")' ${EXTRAS} > dependencies.txt
RUN pip --python /opt/blindtally/bin/python install --no-cache-dir --requirement dependencies.txt \
 && find /opt/blindtally -depth -type d -name tests -path '*-packages/*' -exec rm -r {} +
COPY README.md LICENSE ./
COPY blindtally blindtally
COPY client client
COPY protocol protocol
COPY secagg secagg
COPY server server
RUN pip --python /opt/blindtally/bin/python install --no-cache-dir --no-deps .

FROM ${PYTHON_IMAGE}
RUN useradd --create-home --uid 10001 blindtally
COPY --from=build /opt/blindtally /opt/blindtally
# Compiled kernels are kept where a container with a read-only file system may write.
ENV PATH=/opt/blindtally/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/tmp/numba
USER 10001
WORKDIR /home/blindtally

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=9)"]
ENTRYPOINT ["blindtally"]
CMD ["serve", "--host", "0.0.0.0"]
