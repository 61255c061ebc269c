#!/bin/sh
# machine/single.sh: writes the core as one file to standard output, for `make single`: the headers in reading order, the
# floor's portable files where they are first needed, and a main. The tuned versions (machine/tuned.h; cuda/, all but
# cuda/machine.cuh) are left out: the file is the project compiled with -DPORTABLE. Run it from the project's root.
set -eu
files="machine/numbers.h tree.h cuda/machine.cuh kernels.cuh machine/integers.h machine/threads.h machine/launch.h
machine/packing.h model.h sample.h draft.h decode.h machine/single.cpp"

cat <<'HEAD'
// nanospec, the core in one file: g++ -x c++ -std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno -pthread nanospec_single.cu -o single && ./single data/tinyshakespeare.txt
//                           on a GPU: nvcc -std=c++17 -O3 --fmad=false nanospec_single.cu -o single && ./single data/tinyshakespeare.txt
// `make single` wrote it out of the project's files, in the order in which they are read; each begins with its name.
#define PORTABLE
HEAD
cat $files | grep -hE '^#include <' | grep -vE 'immintrin|sched.h|sys/mman.h|cuda_runtime' | sort -u
cat <<'HEAD'
#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif
HEAD
# awk leaves out the project's own includes, the guards, and what -DPORTABLE leaves out; of decode.h also what runs whole
# iterations on a GPU. cuda/machine.cuh is for nvcc alone.
for file in $files; do
  echo
  case $file in cuda/*) echo "#ifdef WITH_CUDA" ;; esac
  awk -v file="$file" '
    /^#include/ || /^#pragma once/ { next }
    skip > 0 && /^#if/ { depth++ }
    skip > 0 && /^#endif/ { if (--depth == 0) skip = 0; next }
    skip == 1 && depth == 1 && /^#else/ { skip = 0; other = 1; next }
    skip > 0 { next }
    other && /^#if/ { inner++ }
    other && /^#endif/ { if (inner-- == 0) { other = 0; inner = 0; next } }
    /^#ifndef PORTABLE/ || (file == "decode.h" && /^#ifdef WITH_CUDA/) { skip = 1; depth = 1; next }
    /^#ifdef PORTABLE/ { other = 1; inner = 0; kept = 1; next }
    other && kept && inner == 0 && /^#else/ { other = 0; kept = 0; skip = 2; depth = 1; next }
    { print }' "$file"
  case $file in cuda/*) echo "#endif" ;; esac
done
