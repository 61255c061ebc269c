// files/drafters.h: loads drafters by name from a model's folder. The names themselves: drafter_names.h; drafters that
// run a model: model_drafters.h. It drafts nothing itself.
#pragma once

#include "drafters/logits.h"
#include "files/drafter_names.h"

namespace nanospec {

// Makes a drafter that runs a model, or heads on one: kGpt, kSelf, kMedusa, kHydra, kParallel. It throws runtime_error
// for files that are missing or do not fit.
using MakeModelDrafter = std::function<std::unique_ptr<Drafter>(const DrafterName&)>;

// The drafter of these names for the model in `dir`, of `vocab` tokens; null for `none`, plain decoding. Throws
// runtime_error for a file that is missing or does not fit.
std::unique_ptr<Drafter> load_drafter(const std::vector<DrafterName>& names, const std::string& dir, int vocab,
                                      const MakeModelDrafter& make = nullptr);
std::unique_ptr<Drafter> load_drafter(const std::string& text, const std::string& dir, int vocab,
                                      const MakeModelDrafter& make = nullptr);

}  // namespace nanospec
