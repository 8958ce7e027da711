# rl_twoclocks in a container.
#
#   docker build --build-arg UID=$(id -u) -t rl_twoclocks .
#   mkdir -p runs && docker run --rm -v "$PWD/runs:/home/trainer/runs" rl_twoclocks task=halfcheetah
#
# Of the package's extras it holds `envpool` alone: for Atari, Redis, export or sweeps add theirs below.
#
# The default needs no GPU. Which build of torch is installed (CPU or CUDA) is up to the package
# index: pip takes what its index serves for TORCH_SPEC. To choose, name a build of the release
# pinned in constraints.txt by its local suffix, and the index that serves it:
#
#   docker build --build-arg TORCH_SPEC=torch==2.13.0+cpu   --build-arg TORCH_INDEX=<URL> .
#   docker build --build-arg TORCH_SPEC=torch==2.13.0+cu130 --build-arg TORCH_INDEX=<URL> .
#   docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all rl_twoclocks ...
#
# A CUDA build of torch brings its own CUDA libraries, so the base image stays the same; only the
# host needs NVIDIA's driver and container toolkit. Another BASE_IMAGE must be Debian-based, with
# Python >= 3.11 (headers included: torch.compile needs them) and pip.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# gcc and g++: torch.compile. EGL, GL and OSMesa: MuJoCo's rendering without a screen.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libegl1 libgl1 libosmesa6 \
    && rm -rf /var/lib/apt/lists/*

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /src

# torch is the largest layer by far and changes least: first, by itself.
ARG TORCH_SPEC=torch==2.13.0
ARG TORCH_INDEX=
COPY constraints.txt ./
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$TORCH_SPEC"

COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY rl_twoclocks rl_twoclocks
RUN pip install -c constraints.txt ".[envpool]"

# Give your own uid, so that what the container writes into a mounted runs/ is yours:
# --build-arg UID=$(id -u)
ARG UID=1000
RUN useradd --non-unique --create-home --uid "$UID" trainer \
    && install -d -o trainer -g trainer /home/trainer/runs
USER trainer
WORKDIR /home/trainer

# egl works with a GPU and, through Mesa, without one; osmesa is the fallback: -e MUJOCO_GL=osmesa
ENV MUJOCO_GL=egl PYTHONUNBUFFERED=1

ENTRYPOINT ["python", "-m", "rl_twoclocks.train"]
