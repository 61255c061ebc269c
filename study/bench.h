// study/bench.h: what `bench` and `experiments` are made of, and what the sections of `bench` share, each in a file of
// its own: bench_forward.cpp, bench_decode.cpp (decode, kinds), bench_batch.cpp, bench_train.cpp, bench_gpu.cpp.
// bench.cpp has the command line, the roofline's table and the order. What other engines make of the same work,
// tests/reference/peers.py measures.
//
// In order: how even the repeats were; the bench itself; its sections; figures of theirs that are pure
// arithmetic, so that tests can hold them.
//
// How to add a section of `bench`: write `void bench_NAME(Bench&)`, declare it below, and give it a line in sections_of
// of bench.cpp, with its seconds. It says by bench.show() how far it is, prints when it is complete, and adds to
// evenness. What compares methods is a Topic, as an experiment is: see experiments.h.
#pragma once

#include "commands/commands.h"
#include "files/folder.h"
#include "study/gpu.h"
#include "study/intervals.h"
#include "study/roofline.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Repeats

// How far repeats of the same thing lay apart.
struct Evenness {
  std::string what;
  double uneven;  // see unevenness()
};

// One line where something else was busy on the machine; "" where the repeats were even.
std::string busy_line(const std::vector<Evenness>& repeats);

// ---------------------------------------------------------------------------------------------------------------
// The bench

// A part of the work, by the name that --only knows.
struct Section {
  const char* name;
  std::function<void()> run;
  double seconds;  // about, or at most
  const char* what;
  bool by_default = true;  // whether it runs where --only names nothing
};
using Sections = std::vector<Section>;
std::string sections_help(const Sections& sections);
// Those that --only names, in their order; where it is not given, those that run by default. Throws
// std::invalid_argument.
Sections chosen(const Sections& all, const Given& given, const std::string& only);

constexpr const char* kQuickRun = "A quick run proves nothing";  // above its tables, and in its files

struct Bench {
  Options options;  // threads, device, seed, quiet
  std::string data, out = "build/bench";
  int repeats = 5;
  bool quick = false;

  Machine machine;
  Roofline roofline;
  std::unique_ptr<LockedFolder> folder;  // OUT, from run() on
  std::unique_ptr<Progress> progress;    // likewise
  std::string section;                   // that runs
  double seconds = 60;                   // that it may take
  double all_seconds = 0, before = 0;    // that all sections may take; that those before this one might
  std::vector<Evenness> evenness;

  // Makes the folder, looks at the machine, and runs these, until Ctrl-C. scale: of their seconds.
  void run(const Sections& sections, double scale = 1);
  // Says where the files are, and whether something else was busy on the machine; writes OUT/evenness.json.
  void conclude() const;

  // A progress line, where it is time for one: what the section does, how much of it is done (0 to 1), what is left to
  // do. False after Ctrl-C.
  bool show(const std::string& doing, double done) const;
  // Prints a table under a heading.
  void print(const std::string& heading, const std::string& table);
  // OUT/NAME.json, with the machine and its limits beside the section's own figures, and OUT/NAME.svg.
  void write_json(const std::string& name, const OrderedJson& json) const;
  void write_svg(const std::string& name, const std::string& svg) const;
};

// Cells of a table: median, lowest and highest, times `scale`; with so many decimals, or as thousands() below 0.
Row middle_and_ends(const std::vector<double>& runs, double scale, int places);
Row together(Row cells, const std::vector<Row>& more);  // one row of all

std::string machine_line(const Bench& bench);  // for people: below a picture's title
inline std::string left_out(const std::string& why) { return "left out: " + why + "\n"; }

// ---------------------------------------------------------------------------------------------------------------
// The sections. Each prints, and writes its files, when it is complete; an interrupted one leaves whole files or none.

void bench_forward(Bench& bench);
std::string decode_missing(const Bench& bench);  // what section decode cannot run without; "" where it can
void bench_decode(Bench& bench);
void bench_train(Bench& bench);
void bench_kinds(Bench& bench);
void bench_batch(Bench& bench);
void bench_gpu(Bench& bench);

// A part of a section's work, as shares that are done where it begins, and of it.
struct Stretch {
  double begin = 0, share = 1;
  double at(double done) const { return begin + share * done; }
};

// Updates of training of each size, held against `peak` flop/s: the table of what a whole one takes, and all samples in
// `json`. On a CPU it also prints an update by operation. What it returns is empty where it was interrupted.
std::string updates_text(Bench& bench, bool cuda, double peak, const Stretch& stretch, OrderedJson& json);

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic of a GPU's kernels; a multiply-add counts two

// A kernel's bytes and operations a second over the GPU's limits. The larger share is that of the limit that binds.
struct KernelShares {
  double memory, compute;
  bool memory_binds() const { return memory >= compute; }
  double of_limit() const { return memory_binds() ? memory : compute; }
};
KernelShares shares_of(const KernelTime& kernel, const GpuLimits& limits);

}  // namespace nanospec
