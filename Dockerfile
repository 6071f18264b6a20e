# jaxcomm for CPUs, with its recipes:
#
#   docker build -t jaxcomm .
#   docker run --rm jaxcomm jaxcomm launch -n 4 recipes/elastic/train.py
#
# --build-arg 'EXTRAS=[planner,recipes]' installs extras of pyproject.toml.
FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/jaxcomm
WORKDIR /source
COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY tools/cuda.cmake tools/
COPY third_party/libfabric/LICENSE third_party/libfabric/
COPY third_party/libfabric/rdma third_party/libfabric/rdma
COPY cc cc
COPY jaxcomm jaxcomm
ARG EXTRAS
RUN JAXCOMM_CUDA=OFF /opt/jaxcomm/bin/pip install --no-cache-dir ".$EXTRAS"

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 jaxcomm
COPY --from=build /opt/jaxcomm /opt/jaxcomm
ENV PATH=/opt/jaxcomm/bin:$PATH PYTHONUNBUFFERED=1
# A number, by which Kubernetes sees that it is not root.
USER 1000
WORKDIR /home/jaxcomm
COPY recipes recipes
CMD ["jaxcomm", "--help"]
