// tests/cuda/ptx/program.h: a kernel as nvcc writes it, in PTX, and its instructions as they are run here.
//
// The witness: it runs what nvcc makes of our CUDA kernels, on a machine without a GPU. PTX is the text between C++ and
// a device's machine code. The emulator (tests/cuda/emulator.h) runs the C++ text, so it cannot see what nvcc makes of
// that, nor what stands behind `asm`: the places of mma's fragments, asynchronous copies, waits between launches. This
// can. tests/cuda/cuda_*.cu, compiled by nvcc, link against runtime.cpp in place of NVIDIA's runtime, and their tests
// are named "ptx: ". witness.mk builds and runs all of it.
//
// What it holds besides results: bounds and alignment of every access; races in shared and in device memory; a barrier
// or a meeting of a warp that not all reach; a copy that is read before the wait; what is read or written before a
// launch may; calls within a capture; what is left at the end. What it cannot see: ptxas and its registers, time, the
// order of memory in hardware beyond PTX's rules. The tensor cores' rounding is a model (mma.cpp).
//
// The files: program.h, read.cpp (text to instructions), machine.h (lanes, warps, blocks), memory.cpp (who may reach
// what, and when), operations.cpp (what each opcode does), mma.cpp, run.cpp (who goes next), runtime.cpp and cublas.cpp
// (the libraries' functions). To add an opcode: a row in operations.cpp's table, and its rows in test_ptx.cpp, from the
// manual "PTX ISA". A word that no row knows is a fault, never a guess.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx {

constexpr int kLanes = 32;
using Mask = uint32_t;  // a bit for each lane of a warp
constexpr Mask kAll = ~Mask(0);

// Throws std::runtime_error: the launch ends.
[[noreturn]] void fault(const std::string& what);

// A type of PTX: .u32 is {'u', 4}. kind: u, s, f; b for bits, p for a predicate, 0 for none.
struct Type {
  char kind = 0;
  int bytes = 0;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter };

// A register plus an offset. The register is one that holds 0 where the text names a variable.
struct Address {
  int base = -1;
  int64_t offset = 0;
};

// How a warp takes an instruction: lanes that meet wait for one another, and then it is done for all at once.
enum class Kind : uint8_t { kPlain, kBranch, kEnd, kMeeting, kBarrier };

struct Warp;
struct Instruction;
using Execute = void (*)(Warp&, const Instruction&, Mask);

struct Instruction {
  Execute execute = nullptr;
  Kind kind = Kind::kPlain;
  int guard = -1;  // a predicate: lanes where it is false (or, guard_is_not, true) pass by
  bool guard_is_not = false;
  std::array<int, 4> to{};     // registers; -1 where the result is not wanted
  std::array<int, 10> from{};  // registers, those of constants too
  int outputs = 0, inputs = 0;
  std::array<Address, 2> at;
  int addresses = 0;
  Space space = Space::kGeneric;
  Type type, second;               // the opcode's types: cvt.TYPE.SECOND
  int numbers = 1;                 // of a load or store: .v2, .v4
  int choice = 0;                  // of a comparison, a rounding, a kind of shuffle: each operation's own
  int lanes = -1;                  // of a meeting: which of `from` says who takes part; -1: all
  int target = -1;                 // of a branch
  std::vector<std::string> words;  // the opcode, cut at its dots
  std::string text;                // as it stands in the PTX,
  int line = 0;                    // and where

  bool has(const char* word) const;
};

struct Parameter {
  std::string name;
  int offset, bytes;
};
struct Value {
  int to;  // a register
  uint64_t bits;
};
struct Special {
  int to;
  std::string name;  // "%tid.x"
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  int registers = 0;
  std::vector<Value> constants;   // what registers hold from the beginning
  std::vector<Special> specials;  // registers that say where a thread is
  std::vector<Parameter> parameters;
  int parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
  int smallest = 16;   // bytes of its smallest access to memory: races are looked for in pieces of so many
  bool waits = false;  // it has a griddepcontrol.wait
};

// The kernels of one text of PTX. Each is read when it is asked for.
class Program {
 public:
  explicit Program(std::string text);
  // Throws std::runtime_error where there is none of that name, or its text is not understood.
  const Kernel& kernel(const std::string& name);
  std::vector<std::string> names() const;

 private:
  struct Place {
    size_t header, body, end;
    int line;
  };
  struct Variable {
    int align, bytes;
  };
  friend class Reader;
  std::string text_;
  std::map<std::string, Place> places_;
  std::map<std::string, Variable> shared_;  // of the whole text
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

// operations.cpp: what a statement's opcode does. Sets execute, kind and the rest of an instruction whose words, types
// and guard are set. Returns the shape of its operands, a letter each: d where a result goes, s a source, a an address,
// l a label, n a number that is left to finish(). Throws std::runtime_error for an opcode that no row knows.
const char* understand(Instruction& instruction);

}  // namespace ptx
