// tests/cuda/test_sass.cpp: how many loads from memory each kernel of a decoding step has in flight, by its machine
// code.
//
// A GPU hides the time of a load only behind other loads. Above a kernel's __global__ stands `// Loads: 16.`: so many
// are in flight when the loop that loads the most bytes waits for one of them. cuobjdump writes down the machine code
// (SASS), the Makefile names its files in NANOSPEC_SASS. No kernel may use local memory.
//
// A load names one of six barriers in its control bits; an instruction that needs the value waits for that barrier, and
// so for all loads that named it. Copies into shared memory (LDGSTS) are counted in groups (LDGDEPBAR, DEPBAR). The
// bits are not documented by NVIDIA: they are those of Jia et al. 2018, "Dissecting the NVIDIA Volta GPU", chapter 2.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <vector>

#include "tests/cuda/compiled.h"

namespace nanospec {
namespace {

struct Instruction {
  int address = 0;
  std::string text;      // without its predicate
  uint64_t control = 0;  // the upper half of its 128 bits

  bool is(const char* word) const { return text.compare(0, strlen(word), word) == 0; }
  bool copies() const { return is("LDGSTS"); }
  bool loads() const { return is("LDG.") || is("LD."); }
  int bytes() const {  // of a lane
    if (!loads() && !copies()) return 0;
    const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
    return has(".128") ? 16 : has(".64") ? 8 : has(".U16") || has(".S16") ? 2 : has(".U8") || has(".S8") ? 1 : 4;
  }
  int barrier() const { return int(control >> 46 & 7); }     // that it sets; 7: none
  unsigned waits_for() const { return control >> 52 & 63; }  // a bit for each barrier
  int number(const char* before) const {                     // the hexadecimal one behind these characters; -1: none
    const size_t at = text.find(before);
    return at == std::string::npos ? -1 : int(strtol(text.c_str() + at + strlen(before), nullptr, 16));
  }
};
using Code = std::vector<Instruction>;

// The most loads that are in flight when an instruction waits for one. A loop is run twice: the first time fills it.
int loads_in_flight(const Code& code, bool loop) {
  int pending[6] = {}, open = 0, most = 0, all = 0;
  std::vector<int> groups;  // of copies
  bool waited = false;
  for (int turn = 0; turn < (loop ? 2 : 1); turn++)
    for (const Instruction& one : code) {
      int in_flight = open;
      for (int n : pending) in_flight += n;
      for (int n : groups) in_flight += n;
      bool waits = false;
      for (int b = 0; b < 6; b++)
        if (one.waits_for() >> b & 1) waits = waits || pending[b] > 0, pending[b] = 0;
      if (one.is("DEPBAR")) {
        const size_t left = size_t(std::max(0, one.number("SB0, 0x")));
        while (groups.size() > left) waits = waits || groups.front() > 0, groups.erase(groups.begin());
      }
      if (waits) waited = true, most = std::max(most, in_flight);
      if (one.is("LDGDEPBAR")) groups.push_back(open), open = 0;
      else if (one.copies()) open++;
      else if (one.loads() && one.barrier() < 6) pending[one.barrier()]++;
      if (turn == 0) all += one.copies() || one.loads();
    }
  return waited ? most : all;
}

// The loops without loops in them that load. A loop ends with a branch back.
std::vector<Code> innermost_loops(const Code& code) {
  const auto part = [&](int first, int last) {
    Code body;
    for (const Instruction& one : code)
      if (one.address >= first && one.address <= last) body.push_back(one);
    return body;
  };
  std::vector<std::pair<int, int>> loops;
  for (const Instruction& one : code) {
    const int to = one.is("BRA") ? one.number("0x") : -1;
    if (to < 0 || to >= one.address) continue;
    const Code body = part(to, one.address);
    if (std::any_of(body.begin(), body.end(), [](const Instruction& i) { return i.bytes() > 0; }))
      loops.push_back({to, one.address});
  }
  std::vector<Code> innermost;
  for (const auto& loop : loops)
    if (std::none_of(loops.begin(), loops.end(), [&](const auto& other) {
          return other != loop && other.first >= loop.first && other.second <= loop.second;
        }))
      innermost.push_back(part(loop.first, loop.second));
  return innermost;
}

int loads_at_a_time(const Code& code) {
  int heaviest = -1, loads = loads_in_flight(code, false);
  for (const Code& loop : innermost_loops(code)) {
    int bytes = 0;
    for (const Instruction& one : loop) bytes += one.bytes();
    const int here = loads_in_flight(loop, true);
    if (bytes > heaviest || (bytes == heaviest && here < loads)) heaviest = bytes, loads = here;
  }
  return loads;
}

// What cuobjdump --dump-sass wrote: the code of each function, by its symbol and architecture.
std::map<std::string, Code> read_sass(std::istream& said) {
  static const std::regex instruction(
      "^\\s+/\\*([0-9a-f]{4,})\\*/\\s+(?:@!?U?P[T0-9]+ +)?([^;]*);.*/\\* 0x([0-9a-f]{16}) \\*/");
  static const std::regex second("^\\s+/\\* 0x([0-9a-f]{16}) \\*/");
  std::map<std::string, Code> functions;
  std::string architecture;
  Code* code = nullptr;
  std::smatch found;
  for (std::string line; std::getline(said, line);) {
    size_t at = line.find("code for ");
    if (at != std::string::npos) architecture = line.substr(at + 9);
    if ((at = line.find("Function : ")) != std::string::npos)
      code = &functions[line.substr(at + 11) + " " + architecture];
    else if (code && line.size() > 100 && std::regex_search(line, found, instruction))
      code->push_back({int(strtol(found[1].str().c_str(), nullptr, 16)), found[2], 0});
    else if (code && !code->empty() && std::regex_search(line, found, second))
      code->back().control = strtoull(found[1].str().c_str(), nullptr, 16);
  }
  return functions;
}

struct Kernel {
  int stated = -1;  // -1: nothing is
  int least = 1 << 20, most = 0, n = 0, local = 0, instructions = 0;
};

// What the comments above the kernels of a source file state.
void read_statements(const std::string& text, std::map<std::string, Kernel>& kernels) {
  static const std::regex kernel(
      std::string("// (?:Budget: [^\\n]*shared\\. )?Loads: (\\d+)\\.\\n(?:template[^\\n]*\\n)?") + kKernelInSource);
  for (std::sregex_iterator i(text.begin(), text.end(), kernel), end; i != end; ++i)
    kernels[(*i)[2]].stated = std::stoi((*i)[1]);
}

// row_kernel runs any operation: these are part of a decoding step. Weights in f16 have no kernel of their own: theirs
// are the portable product, and what follows it. Norm has more rows than norm_kernel takes. Rope and WriteCache belong
// to --kernels plain.
bool in_a_step(const std::string& name) {
  if (without_arguments(name) != "row_kernel") return true;
  for (const char* op : {"Embed<", "Unpack<", "Rotate", "ToIntegers<", "Norm<", "Rope<", "WriteCache<",
                         "ColumnBlocks<Matmul<float, f16>", "Strips<SwiGlu<", "Strips<AddBias<", "Strips<BiasAndCache<",
                         "Strips<BiasActivation<", "Strips<JoinResidual<"})
    if (name.compare(11, strlen(op), op) == 0) return true;
  return false;
}

}  // namespace

TEST_CASE("loads: how many are in flight when a loop waits for one") {
  // Control bits: the barrier that is set, and those that are waited for.
  const auto code = [](const std::vector<std::tuple<const char*, int, unsigned>>& lines) {
    Code all;
    for (const auto& [text, barrier, waits] : lines)
      all.push_back({int(all.size()) * 16, text, uint64_t(barrier) << 46 | uint64_t(waits) << 52});
    return all;
  };
  // A load, its use, the next load: one at a time. Eight bytes and then sixteen, both before the use: two.
  CHECK(loads_at_a_time(code({{"LDG.E R1", 0, 0}, {"FADD R2, R1", 7, 1}, {"BRA 0x0", 7, 0}})) == 1);
  const auto two = code(
      {{"LDG.E.64 R1", 0, 0}, {"LDG.E.128 R4", 1, 0}, {"FADD R2, R1", 7, 1}, {"FADD R2, R4", 7, 2}, {"BRA 0x0", 7, 0}});
  CHECK(loads_at_a_time(two) == 2);
  // What is used in the next turn is in flight meanwhile: three loads, waited for one by one.
  CHECK(loads_at_a_time(code({{"FADD R2, R1", 7, 1},
                              {"LDG.E R1", 0, 0},
                              {"FADD R2, R3", 7, 2},
                              {"LDG.E R3", 1, 0},
                              {"FADD R2, R5", 7, 4},
                              {"LDG.E R5", 2, 0},
                              {"BRA 0x0", 7, 0}})) == 3);
  // The loop that loads more bytes counts; another one may wait.
  const auto both = code({{"LDG.E R1", 0, 0},
                          {"FADD R2, R1", 7, 1},
                          {"BRA 0x0", 7, 0},
                          {"LDG.E.128 R4", 0, 0},
                          {"LDG.E.128 R8", 0, 0},
                          {"FADD R2, R4", 7, 1},
                          {"BRA 0x30", 7, 0}});
  CHECK(loads_at_a_time(both) == 2);
  CHECK(innermost_loops(both).size() == 2);
  // Copies: two groups, of which the last may still be in flight.
  CHECK(loads_at_a_time(code({{"LDGSTS.E.128 [R1]", 7, 0},
                              {"LDGSTS.E.128 [R1]", 7, 0},
                              {"LDGDEPBAR", 7, 0},
                              {"DEPBAR.LE SB0, 0x1", 7, 0},
                              {"BRA 0x0", 7, 0}})) == 4);

  std::istringstream said(
      "	code for sm_90\n		Function : _Z5firsti\n"
      "        /*0000*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64+0x10] ;                            /* "
      "0x0000000000047919 */\n"
      "                                                                                                   /* "
      "0x002ea20000002500 */\n");
  const auto functions = read_sass(said);
  const Code& first = functions.at("_Z5firsti sm_90");
  CHECK(first.size() == 1);
  CHECK(first[0].bytes() == 16);
  CHECK(first[0].barrier() == 2);
  CHECK(first[0].waits_for() == 2);

  std::map<std::string, Kernel> kernels;
  read_statements(
      "// Budget: 1 registers, 2 bytes shared. Loads: 16.\ntemplate <class T>\n__global__ void first(T x) {", kernels);
  CHECK(kernels["first"].stated == 16);
  CHECK(kernel_name("_ZN8nanospec10row_kernelINS_4FillIfEEEEvT_i") == "row_kernel<Fill<float> >");
  CHECK(!in_a_step("row_kernel<Fill<float> >"));
}

TEST_CASE("sass: every kernel of a decoding step has as many loads in flight as its comment states") {
  std::map<std::string, Kernel> kernels;
  for (const char* file : {"block", "matmul", "matmul_mma", "matmul_integers", "attention", "decode", "gather"})
    read_statements(contents("cuda/" + std::string(file) + ".cuh"), kernels);
  for (const char* file : {"kernels.cuh", "machine/launch.h"}) read_statements(contents(file), kernels);
  std::istringstream files(std::getenv("NANOSPEC_SASS"));
  std::map<std::string, Kernel> rows;  // of the table: row_kernel has one for each operation
  for (std::string path; files >> path;) {
    std::istringstream said(contents(path));
    for (const auto& [symbol, code] : read_sass(said)) {
      const std::string name = kernel_name(symbol.substr(0, symbol.find(' '))), kernel = without_arguments(name);
      if (!kernels.count(kernel) || !in_a_step(name)) continue;
      Kernel& row = rows[kernel == "row_kernel" ? name : kernel];
      const int loads = loads_at_a_time(code);
      const bool f16_embedding = name.find("Unpack<float, f16>") != std::string::npos;  // half_to_float branches
      // A unit of weights with two scales is half as long: there are more ahead, which the compiler does not overlap.
      const bool two_scales = kernel == "multiply_integers" && name.find(", 2>,") != std::string::npos;
      row.stated = f16_embedding ? 1 : two_scales ? 4 : kernels[kernel].stated, row.n++;
      row.least = std::min(row.least, loads), row.most = std::max(row.most, loads);
      row.instructions = std::max(row.instructions, int(code.size()));
      for (const Instruction& one : code) row.local += one.is("LDL") || one.is("STL");
      if (loads < row.stated)
        FAIL_CHECK(symbol << ": " << name << " has " << loads << " loads in flight, not " << row.stated);
    }
  }
  printf("%-58s %9s %12s %6s %13s %6s\n", "CUDA kernel of a decoding step", "compiled", "loads at a time", "stated",
         "instructions", "local");
  for (const auto& row : rows) {
    const std::string& name = row.first;
    const Kernel& k = row.second;
    printf("%-58s %8dx %7d to %-5d %6d %13d %6d\n", name.substr(0, 58).c_str(), k.n, k.least, k.most, k.stated,
           k.instructions, k.local);
    CHECK_MESSAGE(k.local == 0, name);
  }
  for (const char* kernel :
       {"decode_fp32", "decode_bf16", "multiply_integers", "attention_kernel", "norm_kernel", "sample_kernel",
        "threshold_kernel", "draft_kernel", "walk_kernel", "gather_kernel", "plain_attention", "plain_gather",
        "plain_matmul", "row_kernel", "tiled_fp32", "tiled_bf16"}) {
    CAPTURE(kernel);
    CHECK(kernels[kernel].stated > 0);
  }
}

}  // namespace nanospec
