// tests/files/test_drafters.cpp: a drafter's file that is damaged is refused with the command that makes it anew.
#include "files/model_drafters.h"

#include "commands/calibration.h"
#include "tests/command_line.h"
#include "tests/error_of.h"

using namespace nanospec;

TEST_CASE("drafters: damaged files name the command that makes them") {
  const Folder f;
  Config config;
  config.vocab_size = 5;
  const MakeModelDrafter make = [&](const DrafterName& name) -> std::unique_ptr<Drafter> {
    const std::string dir = name.dir.empty() ? f.path : name.dir;
    if (name.kind == DrafterName::kMedusa) return load_medusa(dir, f.path, config);
    if (name.kind == DrafterName::kHydra) return read_hydra(dir, config, f.path), nullptr;
    if (name.kind == DrafterName::kGpt) load_model(dir);
    else read_parallel(dir, config, f.path);
    return nullptr;
  };
  const auto refused = [&](const std::string& drafter) {
    return error_of([&] { load_drafter(drafter, f.path, config.vocab_size, make); });
  };
  const std::string counts =
      "repeat the train_gpt command that made the model, with --resume: it writes the counts anew";
  for (const std::string& bytes : {std::string(), std::string("12345678{}"), std::string("\x02\0\0\0\0\0\0\0{}", 10)}) {
    for (const char* name : {"bigram", "ngram", "medusa", "hydra", "parallel"})
      write_file(f.file(std::string(name) + ".safetensors"), bytes);
    CHECK(holds(refused("bigram"), "bigram.safetensors: " + counts));
    CHECK(holds(refused("ngram:4"), "ngram.safetensors: " + counts));
    CHECK(holds(refused("suffix+bigram"), "bigram.safetensors: " + counts));
    CHECK(holds(refused("medusa"),
                "medusa.safetensors: train them again: train_drafter --medusa " + f.path + " --data FILE"));
    CHECK(holds(refused("medusa:" + f.path + "/."), "--data FILE --out " + f.path + "/."));
    CHECK(holds(refused("hydra"),
                "hydra.safetensors: train them again: train_drafter --hydra " + f.path + " --data FILE"));
    CHECK(holds(refused("parallel"),
                "parallel.safetensors: train it again: train_drafter --parallel " + f.path + " --data FILE"));
  }
  for (const char* name : {"medusa", "hydra", "parallel"}) {
    std::filesystem::remove(f.file(std::string(name) + ".safetensors"));
    CHECK(holds(refused(name), std::string(": train_drafter --") + name + " " + f.path + " --data FILE"));
    CHECK(holds(refused(name + (":" + f.file("x"))), " --data FILE --out " + f.file("x")));
  }
  write_file(f.file("config.json"), std::string("{"));
  CHECK(holds(refused("gpt:" + f.path), "config.json: train it again: train_gpt --data FILE --out " + f.path));
  write_file(f.file("calibration.json"), std::string("{"));
  CHECK(holds(error_of([&] { find_calibration("", "bigram", f.path, 1); }),
              "calibration.json: remove the file and measure again with build/nanospec calibrate"));
}
