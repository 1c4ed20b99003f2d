# The course in a container.
#   docker build -t gpt2-course .                            without a GPU
#   docker build -t gpt2-course --build-arg DEVICE=gpu .     for NVIDIA GPUs (with NVIDIA's Container Toolkit)
#   docker run -it --rm -p 8888:8888 -v gpt2-course:/home/student/gpt2-course gpt2-course
# prints the address of JupyterLab; what you write stays in the volume `gpt2-course`. With GPUs add `--gpus all`, and for
# several of them `--shm-size=1g`: NCCL's buffers do not fit into the 64 MB that Docker gives /dev/shm.
FROM python:3.12-slim-bookworm

# g++ for torch.compile (chapter 11), git for `course restore` and `course update`
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home student \
    && install --directory --owner=student --group=student /home/student/gpt2-course
USER student
WORKDIR /home/student/gpt2-course
ENV PATH=/home/student/gpt2-course/.venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# What the packages depend on comes before the rest: after a change of a chapter nothing is installed again.
COPY --chown=student:student pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=student:student course/machine/setup_env.py course/machine/
# The machine that builds need not have a GPU: with DEVICE=gpu PyTorch and CUDA are there before set-up looks for one.
ARG DEVICE=cpu
RUN mkdir --parents nanogpt \
    && case "$DEVICE" in \
        cpu) ;; \
        gpu) python3 -m venv .venv && .venv/bin/pip install --quiet --constraint constraints.txt torch ;; \
        *) echo "DEVICE is cpu or gpu, not $DEVICE" >&2; exit 1 ;; \
    esac \
    && python3 course/machine/setup_env.py

COPY --chown=student:student . .
EXPOSE 8888
CMD ["course", "lab", "--no-browser", "--ip=0.0.0.0"]
