# For machines with an NVIDIA GPU:
#   docker build -t reverie .
#   docker run --gpus all -v "$PWD/runs:/runs" reverie train dreamer_v3 --env ALE/Pong-v5 --run /runs/pong
FROM python:3.12-slim

# OpenGL without a screen, for MuJoCo and DeepMind Control; a C compiler for what runs on the CPU.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1 libglib2.0-0 gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /reverie
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# PyTorch's Linux wheels bring their own CUDA libraries; the driver comes from the host.
RUN pip install --no-cache-dir -c constraints.txt ".[envs]"

ENV MUJOCO_GL=egl
ENTRYPOINT ["reverie"]
CMD ["--help"]
