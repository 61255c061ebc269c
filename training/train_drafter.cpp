// training/train_drafter.cpp: the program that trains a drafter on a frozen model: Medusa heads, or the parallel
// drafter.
//
// train_gpt --medusa and train_gpt --parallel become this program. It runs on the CPU. Each drafter is in a header of
// its own; what they share, and how to add one, is in train_drafter.h.
#include "training/train_medusa.h"
#include "training/train_parallel.h"

namespace nanospec {
namespace {

const Command kCommand = {
    "train_drafter",
    "Trains a drafter on a model, which stays as it is.",
    "train_drafter --medusa runs/small --data data/*shakespeare.txt --medusa_root --medusa_target distribution"
    "  # takes a minute\n"
    "train_drafter --parallel runs/small --data data/*shakespeare.txt  # takes minutes\n",
    {heading("Drafters"),
     {"--medusa", "DIR", {}, "heads on the model in DIR, for --drafter medusa; --medusa --help says more"},
     {"--parallel", "DIR", {}, "a drafter on the model in DIR, for --drafter parallel; --parallel --help says more"}}};

int train(int argc, char** argv) {
  int (*trainer)(int, char**) = nullptr;
  bool help = false;
  for (int i = argc - 1; i > 0; i--) {  // the first one counts
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    if (flag == "--medusa") trainer = train_drafter<MedusaOptions>;
    if (flag == "--parallel") trainer = train_drafter<ParallelOptions>;
    help = help || word == "--help" || word == "-h";
  }
  if (trainer && !help) return trainer(argc, argv);
  char flag[] = "--help", *alone[] = {argv[0], flag, nullptr};  // so that it is no folder's name
  if (trainer) return trainer(2, alone);
  if (parse_flags(kCommand, argc, argv).help) return 0;
  throw std::invalid_argument("a flag is missing: train_drafter: add --medusa DIR or --parallel DIR");
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) { return nanospec::run_program("train_drafter", nanospec::train, argc, argv); }
