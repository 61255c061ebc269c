// machine/library.cpp: what takes a compiler long and many files need, compiled once for all of them.
//
// The headers list it where they define it, behind INSTANTIATE. The Makefile says "template" for that word in this
// file, "extern template" in the others that are linked with it; programs for CUDA, the emulator's tests and the single
// file go without, and then a header holds all it needs. How to add to it: a line there; take `inline` off a template.
#include "model.h"
