# One image for every part: `blindtally serve`, `blindtally fleet` and the rest.
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE}

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY blindtally blindtally
COPY client client
COPY protocol protocol
COPY secagg secagg
COPY server server
RUN pip install --no-cache-dir '.[postgres]'

RUN useradd --create-home --uid 10001 blindtally
USER blindtally
WORKDIR /home/blindtally

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
ENTRYPOINT ["blindtally"]
CMD ["serve", "--host", "0.0.0.0"]
