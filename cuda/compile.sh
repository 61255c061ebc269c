#!/bin/sh
# cuda/compile.sh: has nvcc compile a file. What ptxas says of each kernel goes into the file SAID, which
# tests/cuda/test_budgets.cpp reads; the rest is shown. The exit status is nvcc's.
#   compile.sh SAID COMMAND...
said=$1
shift
"$@" >"$said" 2>&1
status=$?
grep -vE '^ptxas info|bytes stack frame' "$said"
exit $status
