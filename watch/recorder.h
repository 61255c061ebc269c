// watch/recorder.h: counts (stats.h), and takes the time of each step.
#pragma once

#include <functional>
#include <utility>

#include "growth/plan.h"
#include "watch/stats.h"

namespace nanospec {

// Counts, takes the time of each step, and calls the inner watcher, whose time counts with the step that follows.
class Recorder : public Watcher {
 public:
  Stats stats;

  // What it needs to report an iteration.
  struct Sources {
    int block_size;
    const Sequence& text;
    Drafter* drafter;  // null for plain decoding
    const ShapePlanner& plan;
    bool drafts_on_device;
    std::function<int()> past;
    std::function<int(int node)> pick;                         // that the target made, of the last tree; or null
    std::function<void(const IterationReport&)> on_iteration;  // or null; its time does not count
  };

  Recorder(Clock& clock, Watcher& inner, Sources sources) : clock_(clock), inner_(inner), sources_(std::move(sources)) {
    lap();
  }
  // Wraps the callback of generate(), whose time does not count.
  std::function<bool(int)> timed(std::function<bool(int)> on_token) {
    return [this, on_token = std::move(on_token)](int token) {
      if (!emitting_) verify_ += lap();
      emitting_ = true;
      return on_token(token);
    };
  }

  void ready() override {
    (stats.target_forwards == 0 ? stats.prefill_seconds : slid_ ? stats.seconds_slide : stats.seconds_keep) += lap();
    stats.slide_prefills += slid_;
    inner_.ready();
    draft_ = forward_ = verify_ = 0;
  }
  void drafted(const Growth& growth, const Tree& tree) override {
    if (sources_.drafts_on_device && tree.size() > 1) forward_ += lap();  // the device has run the whole iteration
    stats.drafted_nodes += tree.size() - 1;
    inner_.drafted(growth, tree);
    draft_ += lap();
  }
  void forwarded(const Tree& tree) override {
    forward_ += lap();
    stats.target_forwards++;
    inner_.forwarded(tree);
  }
  void verified(const Growth& growth, const Tree& tree, const Verdict& verdict, int emitted) override {
    lap();  // the callback's time
    emitting_ = false;
    inner_.verified(growth, tree, verdict, emitted);
    stats.seconds_draft += draft_ + lap();
    stats.seconds_forward += forward_;
    stats.seconds_verify += verify_;
    stats.tokens += emitted;
    for (int i = 0; i < emitted && i + 1 < int(verdict.rows.size()); i++)
      stats.accepted_by[sources_.drafter->author(tree.origin[verdict.rows[i]], verdict.tokens[i])]++;
    if (size_t(emitted) >= stats.accept_histogram.size()) stats.accept_histogram.resize(size_t(emitted) + 1, 0);
    stats.accept_histogram[size_t(emitted)]++;
    const Sequence& text = sources_.text;
    const int64_t index = text.draws.index;
    slid_ = window_start(int(index), sources_.block_size) != window_start(text.size(), sources_.block_size);
    if (!sources_.on_iteration) return;
    const int kept = sources_.pick ? 0 : int(verdict.rows.size());  // rows that the device has kept already
    sources_.on_iteration({index, sources_.past() - kept, text.room, sources_.plan.drafts, sources_.drafter, text.draws,
                           growth, tree, verdict, emitted, slid_, sources_.pick, draft_, forward_, verify_});
    lap();
  }
  void committed() override { stats.seconds_draft += lap(); }

 private:
  double lap() {
    const double now = clock_.now();
    return now - std::exchange(last_, now);
  }

  Clock& clock_;
  Watcher& inner_;
  const Sources sources_;
  bool slid_ = false;                                       // whether the window slides after the last forward
  bool emitting_ = false;                                   // whether the callback has been called in this iteration
  double last_ = 0, draft_ = 0, forward_ = 0, verify_ = 0;  // seconds, of this iteration
};

}  // namespace nanospec
