// machine/sampling.cpp: the templates of sample.h and draft.h that go through a whole vocabulary, compiled once and
// optimized whole. library.cpp says how.
#include "draft.h"
