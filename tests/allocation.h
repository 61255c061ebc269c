// tests/allocation.h: how much memory a call asked for.
#pragma once

#include <cstddef>

// The most bytes that this thread has asked for at once since it was last set to 0. It stays 0 under sanitizers, which
// bring their own allocator and a limit of their own. tests/main.cpp has the allocator that notes it.
size_t& largest_allocation();
