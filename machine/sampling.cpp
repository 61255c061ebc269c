// machine/sampling.cpp: the templates of sample.h that go through a whole vocabulary, compiled once and optimized
// whole. library.cpp says how.
#include "sample.h"
