// nanospec.cu: the program. It puts target, drafter, shape and rule together; the commands are in commands/.
//
// The target is compiled here alone, so this file is compiled once for each machine: by the C++ compiler for
// build/nanospec, by nvcc for build/nanospec-cuda. In order: the Engine and the Probe, which the commands call; main.
// The loop of decoding is in decode.h.
#include <climits>

#include "commands/calibration.h"
#include "commands/commands.h"
#include "commands/loading.h"
#include "commands/losses.h"
#include "files/model_drafters.h"
#include "forest/forest.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Engine

namespace {
constexpr int kNodesOfText = 8;  // how many more nodes may pay for each further text
constexpr const char* kDtypes[] = {"auto", "fp32", "bf16", "f16",  "q8",   "q4",   "q4_1",
                                   "q5_0", "q3_k", "q4_k", "q5_k", "q6_k", "q_any"};  // Dtype's, in its order
Dtype dtype_of(const std::string& name) {
  return Dtype(std::find(std::begin(kDtypes), std::end(kDtypes), name) - std::begin(kDtypes));
}
Loaded load(const Settings& s) { return load(s, dtype_of(s.dtype), dtype_of(s.cache_dtype)); }

// How many texts may be decoded side by side. A CPU's memory is taken when it is used, so it must be there for all of
// them. Throws std::runtime_error where it is not, unless there may be fewer.
int seats_of(const Settings& s, const Config& c, bool cuda) {
  const double number = dtype_of(s.cache_dtype) == Dtype::bf16 ? 2 : 4;
  const double slots = pad64(c.block_size + std::max(s.rows, std::min(c.block_size, 256)));
  const double each = 2 * number * c.n_layer * c.n_kv_head * pad16(c.head_size()) * slots;
  if (s.seats == 1) return 1;
  const double there = double(cuda ? free_device_bytes() : available_bytes());
  const double most = std::max(1.0, INT_MAX / slots);  // slots are counted by an int
  if (s.fewer) return int(std::clamp(std::floor(there / 2 / each), 1.0, std::min(double(s.seats), most)));
  if (s.seats > most)
    refuse(filled("{} texts side by side have more than {} places of keys", s.seats, INT_MAX), "--batch",
           "take fewer, or a shorter --context");
  if (each * s.seats > there)
    refuse(filled("{} texts side by side need {} of keys and values, and {} are free", s.seats,
                  bytes_text(each * s.seats), bytes_text(there)),
           "--batch", "take fewer, a shorter --context, or --cache_dtype bf16");
  return s.seats;
}

Target target_of(const Settings& s, const Loaded& loaded) {
  const bool cuda = choose_cuda(s.device);
  const int seats = seats_of(s, loaded.config, cuda);
  set_early(s.early);
  return Target(loaded.config, loaded.source(), dtype_of(s.dtype),
                std::make_shared<Pool>(s.threads, cuda, s.kernels == "plain"), s.rows, dtype_of(s.cache_dtype), seats);
}
}  // namespace

struct Engine::Parts {
  Settings settings;
  Loaded loaded;
  Dtype dtype;  // of most weights
  Target target;
  std::map<std::string, std::vector<std::unique_ptr<Drafter>>> drafters;  // by name; of each seat that had a text
  std::shared_ptr<Cost> cost;  // of a forward, for `auto`; measured when first needed
  std::map<std::string, std::shared_ptr<Experience>> experiences;  // by drafter, rule, noise and sampling
  std::map<std::string, Shape> shapes;                             // those read from files, by all they depend on

  Parts(const Settings& s, Loaded l)
      : settings(s), loaded(std::move(l)), dtype(dtype_of(s.dtype)), target(target_of(s, loaded)) {
    if (dtype == Dtype::as_stored) dtype = stored_as(loaded);
    loaded.weights = {};  // the target has its own
    loaded.tensors = {};
  }

  // The drafter of that name, loaded when it is first needed; null: plain decoding.
  Drafter* drafter(const std::string& name, int seat = 0) {
    std::vector<std::unique_ptr<Drafter>>& of_seats = drafters[name];
    of_seats.resize(size_t(target.seats()));
    std::unique_ptr<Drafter>& its = of_seats[size_t(seat)];
    if (!its && seat > 0 && of_seats[0]) its = of_seats[0]->another(seat);
    if (!its)
      its = load_drafter(name, settings.model, target.vocab_size(),
                         model_drafters(target, settings.model, loaded.config, loaded.tokenizer,
                                        dtype_of(settings.dtype), dtype_of(settings.cache_dtype)));
    return its.get();
  }

  // The shape with its template. Also measures the cost of a forward, where the shape needs it.
  Shape ready(const Shape& shape, const std::string& drafter, float temperature) {
    if ((shape.kind == Shape::kAuto || shape.kind == Shape::kSequoia) && (!cost || cost->most() < shape.budget))
      cost = std::make_shared<Cost>(
          measure_cost(target, std::max(shape.budget, settings.budget) + (target.seats() - 1) * kNodesOfText));
    if (!from_file(shape)) return shape;
    Shape& made = shapes[filled("{} {} {} {}", drafter, shape.name, shape.budget, std::to_string(temperature))];
    if (made.plan) return made;
    made = shape;
    prepare_shape(made, drafter, settings.model, temperature, cost.get());
    return made;
  }

  // How a text is decoded. What is learned of a drafter holds for one rule, noise and sampling.
  Decoding decoding(const Method& method, const Meaning& meaning, bool drafts, const Sampling& sampling,
                    int max_new_tokens) {
    Decoding decoding;
    if (drafts) decoding.shape = ready(meaning.shape, method.drafter, sampling.temperature);
    decoding.rule = meaning.rule;
    decoding.ahead = meaning.ahead;
    decoding.sampling = sampling;
    decoding.max_new_tokens = max_new_tokens;
    decoding.knows_noise = method.knows_noise;
    decoding.cost = cost;
    std::shared_ptr<Experience>& experience =
        experiences[method.drafter + " " + method.verify + (method.knows_noise ? " " : " without noise ") +
                    method.ahead + " " + sampling_text(sampling)];
    if (!experience) experience = std::make_shared<Experience>();
    decoding.experience = experience;
    return decoding;
  }
};

Engine::Engine(const Settings& settings) : parts_(new Parts(settings, load(settings))) {}
Engine::~Engine() = default;

const Tokenizer& Engine::tokenizer() const { return parts_->loaded.tokenizer; }
const Config& Engine::config() const { return parts_->loaded.config; }
std::string Engine::device() const { return parts_->target.cuda() ? "cuda" : "cpu"; }
std::string Engine::dtype() const { return kDtypes[int(parts_->dtype)]; }
int Engine::seats() const { return parts_->target.seats(); }
int Engine::threads() const { return parts_->target.pool()->size(); }
double Engine::weight_bytes() const { return double(parts_->target.weights().bytes()); }

Generated Engine::generate(const Method& method, const Sampling& sampling, const std::vector<int>& prompt,
                           int max_new_tokens, const std::function<bool(int)>& on_token,
                           const Observation& observation) {
  Parts& p = *parts_;
  const Meaning meaning = read_method(method, p.settings.budget);
  Drafter* drafter = p.drafter(method.drafter);
  Decoding decoding = p.decoding(method, meaning, drafter, sampling, max_new_tokens);
  decoding.on_iteration = observation.on_iteration;
  std::unique_ptr<Drafter> stand_in;
  if (drafter && observation.stand_in) {
    stand_in = observation.stand_in(*drafter);
    decoding.experience = nullptr;
  }

  if (!p.settings.keeps_cache) p.target.forget();
  Generated generated;
  std::vector<int> text = prompt;
  generated.stats = nanospec::generate(p.target, stand_in ? stand_in.get() : drafter, decoding, text, on_token);
  generated.tokens.assign(text.begin() + long(prompt.size()), text.end());
  return generated;
}

void Engine::generate(const Method& method, std::deque<Request>& requests) {
  Parts& p = *parts_;
  const Meaning meaning = read_method(method, p.settings.budget);
  if (meaning.ahead != Ahead::kOff)
    throw std::invalid_argument(
        "texts side by side are not drafted ahead: --ahead: leave it out, or generate one text at a time");
  const bool drafts = p.drafter(method.drafter) != nullptr;
  const Decoding all = p.decoding(method, meaning, drafts, {}, 0);
  size_t begun = 0;
  if (!p.settings.keeps_cache) p.target.forget();
  generate_forest(p.target, all.shape, drafts ? all.rule : Rule::kMatch, p.cost.get(),
                  [&](int seat) -> std::unique_ptr<Job> {
                    if (begun == requests.size()) return nullptr;
                    const Request& request = requests[begun++];
                    auto job = std::make_unique<Job>();
                    job->drafter = request.drafter ? request.drafter : p.drafter(method.drafter, seat);
                    job->pick = request.pick;
                    job->settings = p.decoding(method, meaning, drafts, request.sampling, request.max_new_tokens);
                    job->tokens = request.prompt;
                    job->on_token = request.on_token;
                    // What a text learns is its own. The next one begins with it.
                    const std::shared_ptr<Experience> known = job->settings.experience;
                    job->settings.experience = std::make_shared<Experience>(*known);
                    job->on_end = [&request, known, its = job->settings.experience](const Stats& stats) {
                      *known = *its;
                      request.on_end(stats);
                    };
                    return job;
                  });
}

std::vector<double> Engine::losses(const std::vector<int>& tokens, int first) {
  return token_losses(parts_->target, tokens, first, std::min(parts_->settings.rows, parts_->target.most_rows()));
}

// ---------------------------------------------------------------------------------------------------------------
// Probe

struct Probe::Parts {
  Target target;
};

Probe::Probe(const Config& config, const std::string& dtype, const std::string& device, int threads, int most_rows)
    : parts_(new Parts{Target(config, initial_weights(config, 1).data(), dtype_of(dtype), choose_cuda(device), threads,
                              most_rows)}) {}
Probe::Probe(const Settings& s) { parts_.reset(new Parts{target_of(s, load(s))}); }
Probe::~Probe() = default;

namespace {
// Runs a tree as decoding does: on a GPU as one graph, with no logits copied to the host.
template <class Its>
void run_tree(Its& target, const Tree& tree) {
  const int past = target.past();
  if constexpr (Iterates<Its>::value)
    if (target.iterates()) {
      target.iterate(tree, Sampling(), past + 1);
      return target.rewind(past);
    }
  target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
}
}  // namespace

double Probe::forward_seconds(int rows, int past) {
  Target& target = parts_->target;
  if (target.past() != past) target.prefill(std::vector<int>(size_t(past), 0).data(), past);
  const Tree tree = star(rows - 1);
  Stopwatch watch;
  run_tree(target, tree);
  return watch.lap();
}
double Probe::prefill_seconds(int tokens) {
  const std::vector<int> text(size_t(tokens), 0);
  parts_->target.forget();
  Stopwatch watch;
  parts_->target.prefill(text.data(), tokens);
  return watch.lap();
}
double Probe::weight_bytes() const { return double(parts_->target.weights().bytes()); }
double Probe::cache_bytes(int past) const { return double(parts_->target.cache_bytes()) * past; }

}  // namespace nanospec

// Weak: build/study is linked with this file too, and has a main of its own (study/study.cpp).
__attribute__((weak)) int main(int argc, char** argv) {
  return nanospec::run_program("nanospec", nanospec::nanospec_program, argc, argv);
}
