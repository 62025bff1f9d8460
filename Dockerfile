# fedaf on a CPU, as a user without rights. In the checkout:
#
#     docker build -t fedaf .
#     docker run --rm -v "$PWD/runs:/fedaf/runs" fedaf demo
#
# The folder that is mounted must be writable for user 10001, or run with --user "$(id -u):$(id -g)".
#
# The default build of torch on Linux has CUDA and takes several GiB. For the small one without CUDA, add
# --build-arg PIP_EXTRA_INDEX_URL=URL with the index of CPU builds that PyTorch's installation page names.
# constraints.txt is made with this version of Python.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=flower
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m venv /opt/fedaf \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && /opt/fedaf/bin/pip install --no-cache-dir --no-compile \
        -c constraints.txt "$(ls /wheels/*.whl)[${EXTRAS}]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/fedaf /opt/fedaf
RUN useradd --uid 10001 --create-home fedaf && install -d -o fedaf -g fedaf /fedaf
ENV PATH=/opt/fedaf/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib
USER 10001:10001
WORKDIR /fedaf
ENTRYPOINT ["fedaf"]
CMD ["--help"]
