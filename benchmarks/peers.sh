#!/usr/bin/env bash
# Build the peer that decode.py and prefill.py compare with: llama.cpp through llama-cpp-python,
# compiled for this very machine. Takes about 10 to 20 minutes. Prints what to export at the end.
set -euo pipefail
target="${1:-build/peers}"
python3 -m venv "$target"
CMAKE_ARGS="-DGGML_NATIVE=ON -DMTMD_BUILD=OFF" \
  "$target/bin/pip" install --no-binary llama-cpp-python "llama-cpp-python==0.3.36" numpy
echo "export FT_PEER_PYTHON=$(cd "$target" && pwd)/bin/python"
