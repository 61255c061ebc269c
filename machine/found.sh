#!/bin/sh
# machine/found.sh: says which compiler, SIMD and CUDA were found, and what is done without. `make` calls it, with its
# variables in the environment; MACROS is the command that prints what the compiler defines for ARCH.
simd=$(eval "$MACROS" | awk '/__AVX512F__/{a=1} /__AVX2__/{b=1} /__aarch64__/{c=1}
  END{print a ? "AVX-512" : b ? "AVX2" : c ? "NEON" : "portable version"}')
if [ -n "$GPU" ]; then cuda="$GPU: make builds the -cuda programs too"
elif [ -n "$NVCC" ]; then cuda="no device here: make cuda builds the -cuda programs"
else cuda="no nvcc: the CPU does everything"; fi
compiler=$($CXX --version 2>/dev/null | head -n 1)
echo "compiler  ${compiler:-none: make deps}"
echo "SIMD      $simd (ARCH=$ARCH)"
echo "CUDA      $cuda"
