#!/bin/sh
# tests/reference/peers.sh: builds llama.cpp into build/peers, to hold nanospec against. `make peers` calls it.
#
# The sources are those in the source package of llama-cpp-python 0.3.36 (PyPI), a download of 77 MB, held against its
# SHA-256. Built once, in Release, for this processor, but without AMX, which crashes in some virtual machines. A build
# that was stopped goes on where it was. build/peers/bin gets the programs, their libraries, and two programs of ours,
# llama_greedy and llama_speculate, whose sources lie beside this script. Exit status 0 when all are there. It installs
# cmake and pip where there is none.
set -eu
unset MAKEFLAGS MFLAGS # cmake's make is not ours
cd "$(dirname "$0")/../.."
mkdir -p build/peers
here=$PWD/build/peers

version=0.3.36
package=llama-cpp-python==$version
sdist=llama_cpp_python-$version.tar.gz
sdist_sha=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
programs="llama-bench llama-batched-bench llama-perplexity llama-quantize llama-lookup llama-completion
llama-speculative-simple"
what=peers
. data/pip.sh

scratch=$(mktemp -d "$here/.get.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

need_cmake() {
  if command -v cmake >/dev/null; then return; fi
  sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
  install="$sudo apt-get install -y --no-install-recommends cmake"
  tell "installing cmake"
  { $install || { $sudo apt-get update && $install; }; } >"$scratch/log" 2>&1 ||
    fail "no cmake: $(tail -n 1 "$scratch/log"): install cmake"
}

get_sources() {
  if [ -f "$here/source/CMakeLists.txt" ]; then return; fi
  need_pip llama-cpp-python "put its llama.cpp into build/peers/source yourself"
  tell "getting the source package $package, 77 MB"
  echo "$package --hash=sha256:$sdist_sha" >"$scratch/package"
  python3 -m pip download --disable-pip-version-check --timeout 60 --retries 2 --no-deps --no-binary llama-cpp-python \
    -r "$scratch/package" -d "$scratch" >"$scratch/log" 2>&1 ||
    fail "no package $package: $(tail -n 1 "$scratch/log"): check the network"
  mkdir "$scratch/source"
  tar -xzf "$scratch/$sdist" -C "$scratch/source" --strip-components=3 "${sdist%.tar.gz}/vendor/llama.cpp" ||
    fail "the package $package does not hold vendor/llama.cpp"
  rm -rf "$here/source"
  mv "$scratch/source" "$here/source"
}

# Everything that this processor has but AMX. ggml's own choice for it (GGML_NATIVE) would bring AMX in, after any flags
# of ours. Other processors have no AMX: there all is left to ggml.
configure() {
  if [ "$(uname -m)" = x86_64 ]; then
    native="-march=native -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    set -- -DGGML_NATIVE=OFF "-DCMAKE_C_FLAGS=$native" "-DCMAKE_CXX_FLAGS=$native"
    for added in SSE42 AVX AVX2 FMA F16C BMI2; do set -- "$@" -DGGML_$added=OFF; done # none beyond the processor's
  fi
  cmake -S "$here/source" -B "$here" -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=ON \
    "-DLLAMA_BUILD_COMMIT=llama-cpp-python $version" "$@"
}

build() {
  need_cmake
  log=$here/log
  tell "building llama.cpp into build/peers: minutes to half an hour; what it says is in build/peers/log"
  configure >"$log" 2>&1 ||
    fail "cmake refuses llama.cpp: $(grep -m 1 'CMake Error' "$log" || tail -n 1 "$log"): see build/peers/log"
  cmake --build "$here" -j "${JOBS:-$(nproc)}" --target $programs >>"$log" 2>&1 ||
    fail "llama.cpp does not build: $(grep -m 1 ' error: ' "$log" || tail -n 1 "$log"): see build/peers/log"
  ! uses_amx || fail "llama.cpp would use AMX, and must not: see build/peers/log"
}

# Whether an AMX instruction is in what was built: they are the only ones that name the registers tmm0 to tmm7.
uses_amx() { objdump -d --no-show-raw-insn "$here/bin/libggml-cpu.so" | grep -q '%tmm'; }

build_ours() { # each program of ours, again where its source is newer
  theirs=build/peers/source
  for ours in llama_greedy llama_speculate; do
    source=tests/reference/$ours.cpp
    if [ "$here/bin/$ours" -nt $source ]; then continue; fi
    ${CXX:-g++} -std=c++17 -O2 -Wall -Wextra -I$theirs/include -I$theirs/ggml/include -I$theirs/common -I$theirs/vendor \
      $source -o "$here/bin/$ours" -L"$here/bin" -lllama-common -lllama -lggml -lggml-base "-Wl,-rpath,\$ORIGIN" ||
      fail "$source does not compile"
  done
}

get_sources
[ "$(cat "$here/complete" 2>/dev/null)" = "$programs" ] || build # it names the programs that are there
echo "$programs" >"$here/complete"
build_ours
tell "llama.cpp is in build/peers/bin"
