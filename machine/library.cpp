// machine/library.cpp: templates that take long to compile and that many files need, compiled once for all of them.
//
// The headers list them behind INSTANTIATE, after their definitions. The Makefile defines INSTANTIATE as `template` for
// this file, and as `extern template` for the files that are linked with it: by the C++ compiler, and again by nvcc,
// whose kernels are nearly all here. For the emulator's tests and the single file it is not defined, and each file
// compiles its own. How to add a template: give it a line there, and remove its `inline`.
#include "model.h"
