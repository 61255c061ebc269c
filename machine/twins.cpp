// machine/twins.cpp: the templates of the tuned CPU versions, compiled once for the programs with and without a GPU.
// library.cpp says how.
#include "machine/attention.h"
#include "machine/integer_products.h"
