// machine/library.cpp: templates that take long to compile and that many files need, compiled once for all of them.
//
// The headers list them behind INSTANTIATE, after their definitions. The Makefile defines INSTANTIATE as `extern
// template`, so that no file compiles them, and this one makes it `template`: by the C++ compiler, and again by nvcc,
// whose kernels are nearly all here. What is the same with and without a GPU is in twins.cpp and sampling.cpp. For the
// emulator's tests it is not defined, and each file compiles its own. How to add a template: give it a line there, and
// remove its `inline`.
#include "machine/attention.h"
#include "machine/integer_products.h"
#undef INSTANTIATE
#define INSTANTIATE template
#include "train.h"
#include "weights.h"
