# The image of `examples/kubernetes/`: paxtune's wheel on the pinned packages.
#
#   docker build -t registry.example/paxtune:1 --build-arg JAX='jax[cuda13]' .
#
# JAX is `jax[cuda13]` on GPUs, and `jax[tpu]` on TPUs. The pinned version may be slow on GPUs
# (docs/performance.md); a newer one needs Python 3.12 below, and no constraints. An image with
# experiments of your own starts with `FROM registry.example/paxtune:1` and copies their modules
# into /app.

FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist /src

FROM python:3.11-slim
ARG EXTRAS=gcs,postgres
ARG JAX=jax
COPY constraints.txt /tmp/
COPY --from=wheel /dist /tmp/dist
# The pins have hashes, which uv verifies.
RUN pip install --no-cache-dir uv \
    && uv pip install --system --no-cache --compile-bytecode --constraint /tmp/constraints.txt \
        "$(echo /tmp/dist/*.whl)[$EXTRAS]" "$JAX" \
    && useradd --uid 10001 --create-home paxtune
# Steps on CPUs have fewer page faults (docs/performance.md).
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 GLIBC_TUNABLES=glibc.malloc.hugetlb=1
WORKDIR /app
USER 10001
CMD ["python", "-m", "paxtune.search", "--help"]
