// tests/cuda/test_budgets.cpp: what each CUDA kernel may use of a multiprocessor, as its comment says, against what it
// uses.
//
// Above a kernel's __global__ stands `// Budget: 64 registers, 20480 bytes shared.` nvcc's assembler, ptxas, tells what
// every instantiation takes, on every architecture that we build for; the Makefile names the files of what it said in
// NANOSPEC_PTXAS. No kernel may spill registers to memory.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <regex>

#include "tests/cuda/compiled.h"

namespace nanospec {
namespace {

struct Kernel {
  int registers = -1, shared = -1;                                        // the budget; -1: it has none
  int used_registers = 0, used_shared = 0, stack = 0, spills = 0, n = 0;  // the most of any of n instantiations
};

struct Budgets {
  std::map<std::string, Kernel> kernels;
  std::vector<std::string> faults;

  // Every __global__ of a source file, with the budget in the few lines above it.
  void read_source(const std::string& name, const std::string& text) {
    static const std::regex kernel(std::string("^") + kKernelInSource);
    static const std::regex budget("// Budget: (\\d+) registers, (\\d+) bytes shared\\.");
    for (size_t at = 0; (at = text.find("__global__", at)) != std::string::npos; at++) {
      const size_t line = text.rfind('\n', at) + 1;
      if (text.compare(line, at - line, std::string(at - line, ' ')) != 0 && text.compare(line, 8, "template") != 0)
        continue;  // a word in a comment
      std::smatch found;
      const std::string from = text.substr(at, 400);
      if (!std::regex_search(from, found, kernel)) {
        faults.push_back(name + ": a __global__ that is not followed by void and a name: " + from.substr(0, 60));
        continue;
      }
      Kernel& k = kernels[found[1]];
      size_t above = line;  // up to six lines, none of which ends something else
      for (int i = 0; i < 6 && above > 1; i++) {
        const size_t before = text.rfind('\n', above - 2) + 1;
        if (text[above - 2] == '}' || text[above - 2] == ';') break;
        above = before;
      }
      const std::string comment = text.substr(above, line - above);
      std::smatch numbers;
      if (std::regex_search(comment, numbers, budget))
        k.registers = std::stoi(numbers[1]), k.shared = std::stoi(numbers[2]);
      else faults.push_back(name + ": " + found[1].str() + " has no line \"// Budget: R registers, S bytes shared.\"");
    }
  }

  // What ptxas said.
  void read_ptxas(std::istream& said) {
    Kernel nothing, *k = &nothing;
    std::string entry;
    for (std::string line; std::getline(said, line);) {
      int number = 0, stores = 0, loads = 0;
      const size_t quote = line.find("entry function '");
      if (quote != std::string::npos) {
        entry = line.substr(quote + 16);
        entry = without_arguments(kernel_name(entry.substr(0, entry.find('\''))));
        k = &kernels[entry];
        if (k->registers < 0) faults.push_back(entry + ": compiled, but not found in the sources with a budget");
        k->n++;
      } else if (sscanf(line.c_str(), " %d bytes stack frame, %d bytes spill stores, %d", &number, &stores, &loads) ==
                 3) {
        k->stack = std::max(k->stack, number), k->spills = std::max(k->spills, stores + loads);
        if (stores + loads > 0) faults.push_back(entry + " spills " + std::to_string(stores + loads) + " bytes");
      } else if (sscanf(line.c_str(), "ptxas info    : Used %d registers", &number) == 1) {
        k->used_registers = std::max(k->used_registers, number);
        const size_t shared = line.find(" bytes smem");
        const int bytes = shared == std::string::npos ? 0 : std::stoi(line.substr(line.rfind(' ', shared - 1)));
        k->used_shared = std::max(k->used_shared, bytes);
        if (k->registers >= 0 && (number > k->registers || bytes > k->shared))
          faults.push_back(entry + " uses " + std::to_string(number) + " registers, " + std::to_string(bytes) +
                           " bytes shared: more than its budget");
      }
    }
    std::sort(faults.begin(), faults.end());
    faults.erase(std::unique(faults.begin(), faults.end()), faults.end());
  }

  void print() const {
    printf("%-34s %9s  registers/budget  shared/budget  stack  spills\n", "CUDA kernel", "compiled");
    for (const auto& [name, k] : kernels) {
      if (k.n == 0) printf("%-34s in neither program\n", name.c_str());
      else
        printf("%-34s %8dx  %9d/%-6d  %7d/%-6d %5d %7d\n", name.c_str(), k.n, k.used_registers, k.registers,
               k.used_shared, k.shared, k.stack, k.spills);
    }
  }
};

}  // namespace

TEST_CASE("budgets: a kernel without one, over it, or that spills is found") {
  const char* source =
      "// Runs __global__ things.\n"
      "// Budget: 40 registers, 1024 bytes shared.\n"
      "template <class Op>\n"
      "__global__ void first(Op op) {}\n"
      "// Budget: 64 registers, 0 bytes shared.\n"
      "__global__ void __launch_bounds__(size(4) * 2)\n    second(int n) {\n}\n"
      "__global__ __launch_bounds__(128) void third() {}\n";
  const auto faults = [&](const std::string& symbol, const std::string& properties) {
    Budgets budgets;
    budgets.read_source("source", source);
    std::istringstream said("ptxas info    : Compiling entry function '" + symbol + "' for 'sm_80'\n" +
                            "ptxas info    : Function properties for " + symbol + "\n" + properties);
    budgets.read_ptxas(said);
    CHECK(budgets.faults[budgets.faults.size() - 1].find("third has no line") != std::string::npos);
    return budgets.faults.size() == 1 ? "" : budgets.faults[0];
  };
  const std::string calm = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
  const std::string spill = "    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n";
  const auto used = [](int registers, int shared) {
    return "ptxas info    : Used " + std::to_string(registers) + " registers, used 0 barriers, " +
           (shared ? std::to_string(shared) + " bytes smem, " : "") + "404 bytes cmem[0]\n";
  };
  const std::string first = "_ZN8nanospec5firstINS_6MatmulIfNS_4bf16EEEEEvT_";
  const std::string second = "_ZN8nanospec48_GLOBAL__N__01234567_11_nanospec_cu_01234567_1236secondEi";
  CHECK(faults(first, calm + used(40, 1024)) == "");
  CHECK(faults("_ZN8nanospec12_GLOBAL__N_16secondEi", calm + used(64, 0)) == "");
  CHECK(faults(second, calm + used(64, 0)) == "");
  CHECK(faults(first, calm + used(41, 1024)) == "first uses 41 registers, 1024 bytes shared: more than its budget");
  CHECK(faults(first, calm + used(40, 1028)) == "first uses 40 registers, 1028 bytes shared: more than its budget");
  CHECK(faults(second, calm + used(10, 4)) == "second uses 10 registers, 4 bytes shared: more than its budget");
  CHECK(faults(second, spill + used(10, 0)) == "second spills 12 bytes");
  CHECK(faults("_Z5otheri", calm + used(10, 0)).find("other") == 0);
}

TEST_CASE("ptxas: every kernel keeps to its budget, and none spills") {
  Budgets budgets;
  for (const auto& file : std::filesystem::directory_iterator("cuda"))
    budgets.read_source(file.path().string(), contents(file.path().string()));
  for (const char* file : {"kernels.cuh", "machine/launch.h", "study/limits.cuh"})
    budgets.read_source(file, contents(file));
  std::istringstream files(std::getenv("NANOSPEC_PTXAS"));
  for (std::string path; files >> path;) {
    std::istringstream said(contents(path));
    budgets.read_ptxas(said);
  }
  budgets.print();
  for (const std::string& fault : budgets.faults) FAIL_CHECK(fault);
  CHECK(budgets.kernels["row_kernel"].n > 0);
}

TEST_CASE("ptxas: what takes nvcc long is compiled once, in the library") {
  std::istringstream files(std::getenv("NANOSPEC_PTXAS"));
  for (std::string path; files >> path;)
    for (const char* kernel :
         {"decode_fp32", "decode_bf16", "tiled_", "multiply_integers", "attention_k", "attention_q"}) {
      INFO(kernel, " in ", path);
      const bool library = path.find("library") != std::string::npos;
      CHECK((contents(path).find(kernel) != std::string::npos) == library);
    }
}

}  // namespace nanospec
