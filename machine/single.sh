#!/bin/sh
# machine/single.sh: writes the core as one file to standard output, for `make single`: the headers in reading order, the
# floor's portable files where they are first needed, and a main. The tuned versions (machine/tuned.h; cuda/, all but
# cuda/machine.cuh) are left out: the file is the project compiled with -DPORTABLE. Run it from the project's root.
set -eu
files="machine/numbers.h tree.h sample.h draft.h decode.h cuda/machine.cuh kernels.cuh machine/integers.h
machine/threads.h machine/launch.h rows.h machine/packing.h model.h weights.h target.h gradients.cuh
machine/launch_gradients.h train.h machine/single.cpp"

# The commands are typed from the project's root. The text is this file: it is there.
cat <<'HEAD'
// nanospec, the core in one file: g++ -x c++ -std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno -pthread build/nanospec_single.cu -o build/single && build/single build/nanospec_single.cu
//                           on a GPU: nvcc -std=c++17 -O3 --fmad=false build/nanospec_single.cu -o build/single && build/single build/nanospec_single.cu
// So it learns from its own text; any other will do. `make single` wrote it out of the project's files, in the order in
// which they are read; each begins with its name.
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
# awk leaves out the project's own includes, the guards, and what is known of an #if: PORTABLE is defined, TUNED_CUDA is
# not, and cuda/machine.cuh is for nvcc alone. kept[d]: of the d-th #if around a line, 1 or 0 whether the line is in the
# half that stays, -1 where the compiler decides.
for file in $files; do
  echo
  case $file in cuda/*) echo "#ifdef WITH_CUDA" ;; esac
  awk -v file="$file" '
    function known() {
      if ($2 == "PORTABLE") return $1 == "#ifdef"
      if ($2 == "TUNED_CUDA") return 0
      if (file == "cuda/machine.cuh" && $2 == "__CUDACC__") return $1 == "#ifdef"
      return -1
    }
    /^#include/ || /^#pragma once/ { next }
    /^#if/ { kept[++depth] = known(); if (kept[depth] >= 0) next }
    /^#else/ && kept[depth] >= 0 { kept[depth] = !kept[depth]; next }
    /^#endif/ && kept[depth--] >= 0 { next }
    { for (d = 1; d <= depth; d++) if (kept[d] == 0) next; print }' "$file"
  case $file in cuda/*) echo "#endif" ;; esac
done
