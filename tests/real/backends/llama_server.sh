#!/usr/bin/env bash
# A real llama-server for the real tests and for bench/backends.py, with the weights of `coder` as a GGUF file. It is
# built for this machine's CPU from the llama.cpp inside the sdist of llama-cpp-python, in about 15 minutes of two cores.
# Needs cmake, ninja and a C++ compiler, and `make install` before it.
#
#   tests/real/backends/llama_server.sh [FOLDER]   ~/.cache/caesura-tests/llama-server if none is named
#
# FOLDER/llama-server and FOLDER/coder-q8_0.gguf are all that stays, 470 MB.
set -euo pipefail

version=0.3.36
jobs=${JOBS:-$(nproc)}
root=$(realpath "$(dirname "$(realpath "$0")")/../../..")
python=$root/.venv/bin/python
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/caesura-tests/llama-server}")
mkdir -p "$folder"

build() {
  work=$folder/build
  mkdir -p "$work"
  if [ ! -d "$work/source" ]; then
    "$python" -m pip download -q --no-deps --no-binary :all: -d "$work" "llama-cpp-python==$version"
    mkdir "$work/unpacked"
    tar xzf "$work"/llama_cpp_python-*.tar.gz -C "$work/unpacked" --strip-components 1
    mv "$work/unpacked/vendor/llama.cpp" "$work/source"
  fi
  # One file without shared libraries of its own; no web page, no HTTPS: neither is used, and both need the network.
  cmake -S "$work/source" -B "$work/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
  nice -n 15 cmake --build "$work/cmake" --target llama-server --parallel "$jobs" >"$work/log" 2>&1 ||
    { grep -n -m 5 -A 5 'error' "$work/log" >&2 || tail -n 20 "$work/log" >&2; exit 1; }
  strip -o "$folder/llama-server.part" "$work/cmake/bin/llama-server"
  mv "$folder/llama-server.part" "$folder/llama-server"
  rm -rf "$work"
}

# One fill, by the program and its weights.
answers() {
  (cd "$root" && CAESURA_LLAMA_SERVER=$folder "$python" -m tests.real.backends.llama_server >/dev/null)
}

is_new=
[ -x "$folder/llama-server" ] || { build; is_new=1; }
if [ ! -e "$folder/coder-q8_0.gguf" ]; then
  "$python" "$root/bench/peers/coder_gguf.py" "$folder/weights.part"
  mv "$folder/weights.part" "$folder/coder-q8_0.gguf"
fi
# A cache may have come here from another machine, and its program from another kind of CPU.
if [ "$is_new" ]; then
  answers
elif ! answers; then
  echo "The llama-server in $folder does not run here; it is built again." >&2
  build
  answers
fi
