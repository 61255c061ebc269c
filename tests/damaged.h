// tests/damaged.h: what a reader may do with a damaged file: load it, or refuse it in one clear line; and it asks for
// no more memory than the file explains.
#pragma once

#include <exception>
#include <random>
#include <string>
#include <typeinfo>

#include "files/text.h"
#include "tests/allocation.h"

using Random = std::mt19937_64;
inline size_t below(Random& random, size_t n) { return size_t(random() % n); }

struct DamagedRead {
  bool loaded = false;
  std::string refused;  // the line, if it was refused
  std::string wrong;    // what the reader must not do; "" if it did nothing of the kind
};

// read() loads the file and uses what it got. most_bytes: the largest piece of memory that it may ask for.
template <class F>
DamagedRead read_damaged(size_t most_bytes, F read) {
  DamagedRead result;
  largest_allocation() = 0;
  try {
    read();
    result.loaded = true;
  } catch (const std::exception& error) {
    const std::string& line = result.refused = error.what();
    if (typeid(error) != typeid(std::runtime_error) && typeid(error) != typeid(nanospec::Refusal))
      result.wrong = std::string("another exception: ") + typeid(error).name() + ": " + line;
    else if (line != nanospec::printable(line, line.size()) || line.find(": ") == std::string::npos ||
             line.size() > 600)
      result.wrong = "not one clear line: " + line;
  }
  if (largest_allocation() > most_bytes)
    result.wrong = "allocated " + std::to_string(largest_allocation()) + " bytes, at most " +
                   std::to_string(most_bytes) + " are explained";
  return result;
}
