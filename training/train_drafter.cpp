// training/train_drafter.cpp: the program that trains a drafter on a frozen model: Medusa heads, Hydra's heads,
// or the parallel drafter.
//
// train_gpt --medusa, --hydra and --parallel become this program. It runs on the CPU. Each drafter is in a header of
// its own; what they share, and how to add one, is in train_drafter.h. Where the data are FILE.jsonl, they learn from
// what the model said.
#include "training/train_hydra.h"
#include "training/train_medusa.h"
#include "training/train_parallel.h"

namespace nanospec {
namespace {

const Command kCommand = {
    "train_drafter",
    "Trains a drafter on a model, which stays as it is.",
    "train_drafter --medusa runs/small --data data/*shakespeare.txt --medusa_root --medusa_target distribution"
    "  # takes a minute\n"
    "train_drafter --parallel runs/small --data data/*shakespeare.txt  # takes minutes\n"
    "train_drafter --hydra models/SmolLM2-135M-Instruct.Q4_1.gguf --data said.jsonl  # takes half an hour\n",
    {heading("Drafters"),
     {"--medusa", "MODEL", {}, "heads, for --drafter medusa; --medusa --help says more"},
     {"--hydra", "MODEL", {}, "heads that see the path, for --drafter hydra; --hydra --help says more"},
     {"--parallel", "MODEL", {}, "a small network, for --drafter parallel; --parallel --help says more"}}};

int train(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool help = std::count(words.begin(), words.end(), "--help") + std::count(words.begin(), words.end(), "-h") > 0;
  std::unique_ptr<DrafterOptions> options;
  const auto flags = named_flags(argc, argv);
  std::string data;
  for (const auto& [flag, value] : flags)
    if (flag == "--data") data = value;
  const bool of_texts = std::filesystem::path(data).extension() == ".jsonl";
  for (const auto& [flag, value] : flags) {  // the first one counts
    if (options) break;
    if (flag == "--medusa" && !of_texts) options = std::make_unique<MedusaOptions>();
    else if (flag == "--medusa" || flag == "--hydra") options = std::make_unique<HydraOptions>(flag.substr(2));
    else if (flag == "--parallel")
      options = std::make_unique<ParallelOptions>(of_texts ? Recorded::kPassages : Recorded::kFeatures);
  }
  for (const auto& [flag, model] : flags)
    if ((flag == "--medusa" || flag == "--parallel") && is_gguf(model) && !of_texts && !help)
      throw std::invalid_argument(
          "for a GGUF file it learns from what the model said: --data: give it FILE.jsonl, which "
          "nanospec distill writes");
  if (options && !help) return train_drafter(*options, argc, argv);
  char flag[] = "--help", *alone[] = {argv[0], flag, nullptr};  // so that it is no folder's name
  if (options) return train_drafter(*options, 2, alone);
  if ((help || data.empty()) && parse_flags(kCommand, argc, argv).help) return 0;
  throw std::invalid_argument(
      "a flag is missing: train_drafter: add --medusa MODEL, --hydra MODEL or --parallel MODEL");
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) { return nanospec::run_program("train_drafter", nanospec::train, argc, argv); }
