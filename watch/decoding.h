// watch/decoding.h: decodes a text by its settings: it connects planner, runner and watcher.
//
// In order: what a drafter may read of a target; the noise that it draws with; generate(), which all commands and
// trainers call. The settings are in settings.h.
#pragma once

#include <memory>

#include "cuda/whole.h"
#include "drafters/features.h"
#include "growth/ahead.h"
#include "growth/measure.h"
#include "rules/judge.h"
#include "watch/recorder.h"
#include "watch/settings.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What a drafter reads and draws with

// The target's rows as drafters may read them. A target that runs whole iterations gives no logits.
template <class T>
struct RowsOf : TargetRows {
  T& target;
  const bool whole;  // whether it runs whole iterations
  mutable std::unique_ptr<Features> states = {};
  RowsOf(T& its, bool runs_whole) : target(its), whole(runs_whole) {}
  const float* logits(int row) const override { return whole ? nullptr : target.logits(row); }
  const float* hidden(int row) const override { return target.hidden(row); }
  const float* features(int row) const override {
    if constexpr (!std::is_same_v<T, Target>) return target.features(row);  // a mock has its own
    else {
      if (!states) states = std::make_unique<Features>(target);
      return states->row(row);
    }
  }
};

// The noise that the drafter draws with. Under `match` it is the noise that the target will pick with. The proofs of
// the other rules forbid that. `rejection` needs a candidate sampled from q by other noise; `independent` and `typical`
// take the likeliest tokens of q. The remaining rules need a sample too, but they also judge nodes that they do not
// emit, so SampledDrafter draws anew in each forward.
inline Draws draws_of(const Decoding& decoding, Noise& targets, Noise& others) {
  Draws draws = {&decoding.sampling, nullptr, 0, decoding.rule != Rule::kMatch};
  if (decoding.sampling.temperature > 0 && decoding.rule == Rule::kMatch && decoding.knows_noise)
    draws.noise = &targets;
  if (decoding.sampling.temperature > 0 && decoding.rule == Rule::kRejection) draws.noise = &others;
  return draws;
}

// Whether the target can draft this drafter's trees itself: the same trees, with the same chances.
template <class Target>
bool drafts_on_device(Target& target, Drafter* drafter, const Decoding& decoding) {
  const auto* const bigram = dynamic_cast<Bigram*>(drafter);
  const Shape& shape = decoding.shape;
  if (!iterates(target) || !bigram || decoding.rule != Rule::kMatch || !shape.full() || !decoding.knows_noise)
    return false;
  if constexpr (Iterates<Target>::value) return target.load_table(bigram->table, shape.depth, shape.width);
  else return false;
}

// Appends decoding.max_new_tokens tokens to `text`, which begins as the prompt. on_token(int) is called for each token
// as it is emitted; if it returns false, generation ends with that token. drafter: null for plain decoding. watch: its
// lap() gives the seconds since the last lap. Throws std::runtime_error for an empty prompt or a token outside the
// vocabulary, std::invalid_argument for a rule that does not fit the shape, or drafting ahead.
template <class Target, class OnToken, class Watch = Stopwatch>
Stats generate(Target& target, Drafter* drafter, const Decoding& decoding, std::vector<int>& text, OnToken on_token,
               Watch watch = {}) {
  if (drafter) check_rule(decoding.rule, decoding.shape);
  check_ahead(decoding.ahead, decoding.rule);
  const Sampling& sampling = decoding.sampling;
  const int vocab = target.vocab_size(), block = target.block_size();
  const int64_t end = int64_t(text.size()) + decoding.max_new_tokens;
  Noise noise(sampling, vocab), other_noise(sampling, vocab, kStreamDraft);
  Clock clock([&] { return watch.lap(); });

  // The drafter.
  const RowsOf<Target> rows(target, iterates(target) && decoding.rule == Rule::kMatch);
  if (drafter) {
    drafter->temperature = sampling.temperature;
    drafter->attach(&rows);
  }
  const struct Detach {  // also if an exception ends the text
    Drafter* drafter;
    ~Detach() {
      if (drafter) drafter->attach(nullptr);
    }
  } detach{drafter};
  std::unique_ptr<Drafter> drawn;
  const Drafts drafts = about(decoding.rule).drafts;
  if (drafter && drafts != Drafts::kAny && decoding.rule != Rule::kRejection)
    drawn = std::make_unique<SampledDrafter>(*drafter, drafts == Drafts::kWithReplacement);

  // The runner.
  std::unique_ptr<Runner> runner;
  std::function<int(const Tree&, int, int64_t)> pick;
  bool on_device = false;
  if constexpr (Iterates<Target>::value) {
    if (target.iterates() && decoding.rule == Rule::kMatch) {
      auto whole = std::make_unique<Whole<Target>>(target, sampling);
      on_device = drafts_on_device(target, drafter, decoding);
      if (on_device)
        drawn = std::make_unique<DeviceDrafter<Target>>(*whole, decoding.shape.depth, decoding.shape.width, end);
      runner = std::move(whole);
    }
  }
  if (!runner) {
    auto host = decoding.rule == Rule::kMatch || !drafter
                    ? std::make_unique<Host<Target>>(target, sampling, noise)
                    : std::make_unique<Judge<Target>>(target, sampling, noise, *drafter, decoding.rule);
    pick = [&host = *host](const Tree& tree, int node, int64_t index) { return host.pick_after(tree, node, index); };
    runner = std::move(host);
  }

  // The planner and the watcher.
  Experience fresh;
  ShapePlanner plan(decoding.shape, on_device ? nullptr : decoding.cost.get(),
                    decoding.experience ? *decoding.experience : fresh, clock);
  std::unique_ptr<AheadPlanner> ahead;
  const Recorder* records = nullptr;
  if (drafter && decoding.ahead != Ahead::kOff)
    ahead = std::make_unique<AheadPlanner>(
        plan, *drafter, decoding.ahead, sampling, decoding.knows_noise, clock,
        [=](int n) { return room_at(n, end, block); }, [&] { return work_seconds(records->stats); });
  Recorder recorder(clock, ahead ? static_cast<Watcher&>(*ahead) : plan,
                    {int64_t(text.size()), end, block, draws_of(decoding, noise, other_noise), drafter, plan, on_device,
                     [&] { return target.past(); }, pick, decoding.on_iteration});
  records = &recorder;

  generate(*runner, ahead ? static_cast<Planner&>(*ahead) : plan, drawn ? drawn.get() : drafter, recorder,
           draws_of(decoding, noise, other_noise), text, decoding.max_new_tokens, recorder.timed(on_token));
  Stats& stats = recorder.stats;
  stats.reliability = plan.reliability;
  if (ahead) stats.ahead = ahead->stats;
  else stats.ahead.wanted = drafter && decoding.ahead != Ahead::kOff;
  stats.seconds = work_seconds(stats) + stats.seconds_slide;
  return stats;
}

}  // namespace nanospec
