#!/bin/sh
# tests/cuda/budgets.sh: runs some kernels' PTX, and holds each kernel's registers (by what ptxas said) and loads (by the
# machine code, SASS) to its comment, once the -cuda programs are built. The end of `make cuda`, whose variables are in the environment.
#   budgets.sh [carry]    carry: first says what to take to a machine with a device, and what to type there
set -e
# Variables of make's command line (CXX) hold in what is called here, its other flags do not.
case ${MAKEFLAGS-} in *' -- '*) export MAKEFLAGS=" --no-print-directory -- ${MAKEFLAGS#* -- }" ;; *) unset MAKEFLAGS ;; esac

if [ "${1-}" = carry ]; then
  text=data/tinyshakespeare.txt
  [ -e $text ] || text=data/shakespeare.txt
  set -- "$BUILD/nanospec-cuda" "$BUILD/train_gpt-cuda" "$BUILD/study-cuda" "$BUILD/tests/run"
  echo "To carry to the machine with the device, which needs no network: $*, and $text."
  echo "There, in a copy of this folder: $BUILD/tests/run -tc='GPU: *', and $BUILD/nanospec-cuda bench --only gpu"
fi

# What nvcc makes of the kernels runs without a GPU: the parts that a change breaks first, or those that .ci/run draws.
make -f tests/cuda/ptx/witness.mk -j"$JOBS" PARTS="${PARTS:-rows attention decode}"

said=
for object in machine/library nanospec study/measured train_gpt; do said="$said $BUILD/objects/$object.ptxas"; done
NANOSPEC_PTXAS=$said make --no-print-directory test T=ptxas

for dump in "$(command -v cuobjdump)" build/venv/lib/python3*/site-packages/nvidia/*/bin/cuobjdump; do
  [ -x "$dump" ] || continue
  PATH="$(dirname "$dump"):$PATH" "$dump" --dump-sass "$BUILD/nanospec-cuda" >"$BUILD/nanospec.sass"
  NANOSPEC_SASS=$BUILD/nanospec.sass make --no-print-directory test T=sass
  exit
done
echo "no cuobjdump, so the kernels' loads are not counted: it comes with the CUDA Toolkit, or as the PyPI packages"
echo "nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm in build/venv"
