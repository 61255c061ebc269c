// watch/decoding.h: decodes a text by its settings: it connects planner, runner and watcher.
//
// In order: what a drafter may read of a target; the noise that it draws with; a text with all that serves it;
// generate(), which all commands and trainers call for a text alone (forest/forest.h: for many). The settings are in
// settings.h.
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
  const int seat;
  const bool whole;  // whether it runs whole iterations
  mutable std::unique_ptr<Features> states = {};
  RowsOf(T& its, int its_seat, bool runs_whole) : target(its), seat(its_seat), whole(runs_whole) {}
  const float* logits(int row) const override { return whole ? nullptr : seated().logits(row); }
  const float* hidden(int row) const override { return seated().hidden(row); }
  const float* features(int row) const override {
    if constexpr (!std::is_same_v<T, Target>) return target.features(row);  // a mock has its own
    else {
      if (!states) states = std::make_unique<Features>(target);
      seated();
      return states->row(row);
    }
  }
  T& seated() const {
    if constexpr (std::is_same_v<T, Target>) target.sit(seat);  // a mock has one seat
    return target;
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

// Whether a target that runs whole iterations can draft this drafter's trees itself: the same trees, with the same
// chances.
template <class Target>
bool drafts_on_device(Target& target, Drafter* drafter, const Decoding& decoding) {
  const auto* const bigram = dynamic_cast<Bigram*>(drafter);
  const Shape& shape = decoding.shape;
  if constexpr (Iterates<Target>::value)
    return bigram && shape.full() && decoding.knows_noise && target.load_table(bigram->table, shape.depth, shape.width);
  else return false;
}

// ---------------------------------------------------------------------------------------------------------------
// A text with all that serves it

// What one text has for itself. drafter: null for plain decoding.
template <class Target>
struct Decoded {
  const Decoding settings;
  const int64_t end;  // how many tokens the text may have
  Noise noise, others;
  const RowsOf<Target> rows;
  Drafter* const drafter;
  const bool on_device;                     // whether the device drafts
  const std::unique_ptr<Drafter> stand_in;  // that the loop asks in place of the drafter; or null
  Experience fresh;
  ShapePlanner plan;
  std::unique_ptr<AheadPlanner> ahead;  // or null
  Recorder recorder;
  Sequence text;

  // runner: on the host; or null, with that of whole iterations.
  Decoded(Target& target, const Decoding& its, Drafter* its_drafter, std::vector<int>& tokens, int seat, Clock& clock,
          const std::function<bool(int)>& on_token, Host<Target>* runner, Whole<Target>* whole = nullptr)
      : settings(its),
        end(int64_t(tokens.size()) + its.max_new_tokens),
        noise(settings.sampling, target.vocab_size()),
        others(settings.sampling, target.vocab_size(), kStreamDraft),
        rows(target, seat, whole),
        drafter(its_drafter),
        on_device(whole && drafts_on_device(target, drafter, settings)),
        stand_in(stand_in_for(whole)),
        plan(settings.shape, on_device ? nullptr : settings.cost.get(),
             settings.experience ? *settings.experience : fresh, clock),
        ahead(ahead_of(clock, target.block_size())),
        recorder(clock, ahead ? static_cast<Watcher&>(*ahead) : plan,
                 {target.block_size(), text, drafter, plan, on_device, [this] { return rows.seated().past(); },
                  pick_of(runner), settings.on_iteration}),
        text{tokens, end, drafter, recorder, noise, draws_of(settings, noise, others), recorder.timed(on_token), seat} {
    if (!drafter) return;
    drafter->temperature = settings.sampling.temperature;
    drafter->attach(&rows);
    if (stand_in) text.drafter = stand_in.get();
  }
  Decoded(const Decoded&) = delete;
  ~Decoded() {  // also if an exception ends the text
    if (drafter) drafter->attach(nullptr);
  }

  Planner& planner() { return ahead ? static_cast<Planner&>(*ahead) : plan; }
  Stats& finished() {
    Stats& stats = recorder.stats;
    stats.reliability = plan.reliability;
    if (ahead) stats.ahead = ahead->stats;
    stats.seconds = work_seconds(stats) + stats.seconds_slide;
    return stats;
  }

 private:
  std::unique_ptr<Drafter> stand_in_for(Whole<Target>* whole) {
    if constexpr (Iterates<Target>::value)
      if (on_device)
        return std::make_unique<DeviceDrafter<Target>>(*whole, settings.shape.depth, settings.shape.width, end);
    const Drafts drafts = about(settings.rule).drafts;
    if (!drafter || drafts == Drafts::kAny || settings.rule == Rule::kRejection) return nullptr;
    return std::make_unique<SampledDrafter>(*drafter, drafts == Drafts::kWithReplacement);
  }
  std::unique_ptr<AheadPlanner> ahead_of(Clock& clock, int block) {
    if (!drafter || settings.ahead == Ahead::kOff) return nullptr;
    return std::make_unique<AheadPlanner>(
        plan, *drafter, settings.ahead, settings.sampling, settings.knows_noise, clock,
        [=](int n) { return room_at(n, end, block); }, [this] { return work_seconds(recorder.stats); });
  }
  std::function<int(int)> pick_of(Host<Target>* runner) {
    if (!runner) return nullptr;
    return [this, runner](int node) { return runner->pick_after(text, node); };
  }
};

// Throws std::invalid_argument for a rule that does not fit the shape, or drafting ahead.
inline void check_settings(const Decoding& decoding, const Drafter* drafter) {
  if (drafter) check_rule(decoding.rule, decoding.shape);
  check_ahead(decoding.ahead, decoding.rule);
}

// Appends decoding.max_new_tokens tokens to `text`, which begins as the prompt. on_token(int) is called for each token
// as it is emitted; if it returns false, generation ends with that token. drafter: null for plain decoding. watch: its
// lap() gives the seconds since the last lap. Throws std::runtime_error for an empty prompt or a token outside the
// vocabulary, std::invalid_argument for a rule that does not fit the shape, or drafting ahead.
template <class Target, class OnToken, class Watch = Stopwatch>
Stats generate(Target& target, Drafter* drafter, const Decoding& decoding, std::vector<int>& text, OnToken on_token,
               Watch watch = {}) {
  check_settings(decoding, drafter);
  Clock clock([&] { return watch.lap(); });
  if constexpr (Iterates<Target>::value)
    if (target.iterates() && decoding.rule == Rule::kMatch && !decoding.sampling.penalizes()) {
      Whole<Target> runner(target);
      Decoded<Target> its(target, decoding, drafter, text, 0, clock, on_token, nullptr, &runner);
      generate(runner, its.planner(), its.text);
      return its.finished();
    }
  Judge<Target> runner(target, drafter ? decoding.rule : Rule::kMatch);
  Decoded<Target> its(target, decoding, drafter, text, 0, clock, on_token, &runner);
  generate(runner, its.planner(), its.text);
  return its.finished();
}

}  // namespace nanospec
