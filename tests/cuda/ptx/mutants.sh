#!/bin/sh
# tests/cuda/ptx/mutants.sh: runs the witness and the programs under it (witness.mk), then shows that it can fail: each
# line below breaks nvcc's PTX in one place, and the tests that run it must say so. `make prove` calls it.
# A line: program;tests;kernel;what is looked for;the how many-th;what stands there instead (nothing: it goes)
# or, in place of the kernel: reordered: two launches of a graph; kept: memory that is never freed; cublas=WORD: the
# library computes one product alone, is absent, rounds.
w=${BUILD:-build}/witness
found=0 missed=0
NANOSPEC_PROVE=1 make -f tests/cuda/ptx/witness.mk -j"${JOBS:-$(nproc)}" programs || exit 1
while IFS= read -r line; do
  program=${line%%;*} rest=${line#*;}
  tests=${rest%%;*} edit=${rest#*;}
  settings='' blas='' libraries=$w
  case $edit in
  reordered | kept) settings=$edit edit='' ;;
  cublas=absent) libraries='' edit='' ;;
  cublas=*) blas=${edit#*=} edit='' ;;
  esac
  said=$(NANOSPEC_PROVE=1 NANOSPEC_PTX=$settings NANOSPEC_PTX_EDIT=$edit NANOSPEC_PTX_CUBLAS=$blas \
    LD_LIBRARY_PATH=$libraries timeout 300 \
    "$w/run-$program" -tc="ptx: $tests" 2>&1) && status=0 || status=$?
  if [ "$status" != 1 ] && [ "$status" != 124 ]; then
    missed=$((missed + 1))
    echo "failed: not found: $line $(echo "$said" | grep -m1 'nothing to edit')"
  else
    found=$((found + 1))
    echo "found: $line: $(echo "$said" | grep -m1 -oE 'cuBLAS[^:]* (computes|is not)[^:]*|cuBLAS: [A-Z_]*|ptx: [a-z ]*(race|mask|barrier|meeting|pending|waits? for|griddep)[a-z ]*|is NOT correct|not given back.*|Terminated' || echo "status $status")"
  fi
done <<'LINES'
attention;attention has*;attention_kernelIfLi32;bar.warp.sync;1;
attention;attention where*;attention_kernelIfLi32;bar.warp.sync;2;
attention;attention where*;attention_kernelIfLi32;bar.warp.sync;3;
attention;attention has*;attention_kernelIfLi32;bar.warp.sync;4;
attention;attention has*;attention_kernelIfLi32;bar.warp.sync;5;
attention;attention has*;attention_kernelIfLi32;bar.warp.sync;6;
attention;attention has*;attention_kernelIfLi32;bar.sync;1;
attention;attention has*;attention_kernelIfLi32;bar.sync;2;
attention;attention has*;attention_kernelIfLi32;bar.sync;3;
attention;attention has*;attention_kernelIfLi32;bar.red.or.pred %p2, 0, %p1;1;mov.pred %p2, %p1
attention;attention has*;attention_kernelIfLi32;bar.red.or.pred %p2, 0, %p1;2;mov.pred %p2, %p1
attention;attention has*;attention_kernelIfLi32;membar.gl;1;
attention;attention has*;attention_kernelIfLi32;membar.gl;2;
attention;attention has*;attention_kernelIfLi32;shfl.sync.idx;2;shfl.sync.up
attention;attention has*;attention_kernelIfLi32;cp.async.wait_group 1;1;cp.async.wait_group 2
attention;attention has*;attention_kernelIfLi32;griddepcontrol.wait;1;
decode;an iteration does*;norm_kernel;griddepcontrol.wait;1;
decode;an iteration does*;decode_fp32ILi4;cp.async.wait_group 1;1;cp.async.wait_group 2
matmul;*;decode_bf16ILi1ELi1ELi8;mma.sync;1;swap
rows;*;row_kernelINS_16SoftCrossEntropyIf;shfl.sync.bfly;3;shfl.sync.up
integers;*;multiply_integersINS_9QuantizedILi8;bar.sync;2;
matmul;*;tiled_fp32;setp.lt.s32;2;setp.le.s32
decode;an iteration does*;reordered
decode;an iteration does*;kept
train;cuBLAS is given*;cublas=one
train;a training run*;cublas=tf32
train;a training run*;cublas=absent
LINES
echo "$found passed, $missed failed, 0 skipped"
[ "$missed" = 0 ]
