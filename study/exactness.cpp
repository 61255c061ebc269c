// study/exactness.cpp: see exactness.h.
#include "study/exactness.h"

#include "watch/decoding.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Worlds

namespace {

Chances normalized(Chances weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

// A distribution of its own for each (seed, row): exponential draws, to a power that makes them flat or peaked.
Chances random_chances(int vocab, double power, uint64_t seed, uint64_t row) {
  Chances weights;
  for (int x = 0; x < vocab; x++)
    weights.push_back(exp(power * log(-log(uniform(random_bits(seed, 0, kStreamInitialize, row, uint32_t(x)))))));
  return normalized(weights);
}

// Without the tokens from `first` on, `n` of them, around the end.
Chances without(Chances from, int first, int n) {
  for (int i = 0; i < n; i++) from[size_t(first + i) % from.size()] = 0;
  return normalized(from);
}

// The number of the first context of so many tokens.
int first_context(int length, int vocab) { return length == 0 ? 0 : first_context(length - 1, vocab) * vocab + 1; }

constexpr const char* kWorlds[] = {"flat", "uneven", "peaked", "near", "equal", "q lacks", "p lacks", "disjoint"};

// p and q of one context in the kind-th world.
void set_chances(int kind, uint64_t seed, uint64_t context, int vocab, Chances& p, Chances& q) {
  const double power = kind == 0 ? 0.4 : kind == 2 ? 3 : 1;
  const int half = vocab / 2, first = int(random_bits(seed, 1, kStreamInitialize, context, 0) % uint64_t(vocab));
  p = random_chances(vocab, power, seed, 2 * context);
  q = random_chances(vocab, power, seed, 2 * context + 1);
  const std::string name = kWorlds[kind];
  if (name == "near")
    for (int x = 0; x < vocab; x++) q[x] = 0.8 * p[x] + 0.2 * q[x];
  if (name == "equal") q = p;
  if (name == "q lacks" || name == "disjoint") q = without(q, first, half);
  if (name == "p lacks") p = without(p, first, half);
  if (name == "disjoint") p = without(p, first + half, vocab - half);
}

}  // namespace

std::vector<World> make_worlds(int vocab, int depth, int seeds, uint64_t first_seed) {
  const std::vector<Chances> none(size_t(first_context(depth + 1, vocab)));
  std::vector<World> worlds;
  for (int kind = 0; kind < int(std::size(kWorlds)); kind++)
    for (int i = 0; i < seeds; i++) {
      const uint64_t seed = first_seed + uint64_t(i);
      World world = {std::string(kWorlds[kind]) + " " + std::to_string(seed), vocab, none, none};
      for (size_t c = 0; c < world.p.size(); c++) set_chances(kind, seed, c, vocab, world.p[c], world.q[c]);
      worlds.push_back(world);
    }
  return worlds;
}

// ---------------------------------------------------------------------------------------------------------------
// Enumeration

const std::vector<Study> kStudies = {
    {Rule::kMatch, Choosing::kTop, "chain:2", 3},
    {Rule::kRejection, Choosing::kWithReplacement, "chain:1", 3},
    {Rule::kRejection, Choosing::kWithReplacement, "chain:2", 3},
    {Rule::kRejection, Choosing::kWithReplacement, "chain:3", 3},
    {Rule::kBlock, Choosing::kWithReplacement, "chain:1", 3},
    {Rule::kBlock, Choosing::kWithReplacement, "chain:2", 3},
    {Rule::kBlock, Choosing::kWithReplacement, "chain:3", 3},
    {Rule::kTraversal, Choosing::kWithoutReplacement, "chain:3", 3},
    {Rule::kMatch, Choosing::kTop, "tree:1x3", 4},
    {Rule::kSpecInfer, Choosing::kWithReplacement, "tree:1x3", 4},
    {Rule::kWithoutReplacement, Choosing::kWithoutReplacement, "tree:1x3", 4},
    {Rule::kTraversal, Choosing::kWithoutReplacement, "tree:1x3", 4},
    {Rule::kMatch, Choosing::kTop, "tree:2x2", 3},
    {Rule::kMatch, Choosing::kWithReplacement, "tree:2x2", 3},
    {Rule::kSpecInfer, Choosing::kWithReplacement, "tree:2x2", 3},
    {Rule::kWithoutReplacement, Choosing::kWithoutReplacement, "tree:2x2", 3},
    {Rule::kTraversal, Choosing::kWithReplacement, "tree:2x2", 3},
    {Rule::kTraversal, Choosing::kWithoutReplacement, "tree:2x2", 3},
    {Rule::kSpecInfer, Choosing::kWithoutReplacement, "tree:1x3", 4},
    {Rule::kSpecInfer, Choosing::kWithoutReplacement, "tree:2x2", 3},
    {Rule::kIndependent, Choosing::kTop, "chain:2", 3},
    {Rule::kIndependent, Choosing::kTop, "tree:2x2", 3},
    {Rule::kTypical, Choosing::kTop, "tree:2x2", 3},
};

bool is_control(const Study& study) {
  return study.rule == Rule::kSpecInfer && study.choosing == Choosing::kWithoutReplacement;
}
Promise promise_of(const Study& study) { return is_control(study) ? Promise::kBiased : about(study.rule).promise; }

namespace {

// Walks through every outcome of something that asks chance again and again. It is run once for each outcome: a run
// repeats the answers of the one before it, up to the last question that has another possible answer, which it gets.
class Outcomes {
 public:
  // The answer i has chance[i]; impossible answers are never given.
  int choose(const Chances& chance) {
    if (at_ == questions_.size()) questions_.push_back({chance, possible(chance, 0)});
    const Question& question = questions_[at_++];
    if (question.answer == int(chance.size())) throw std::logic_error("a draw from a distribution without mass");
    weight_ *= question.chance[size_t(question.answer)];
    return question.answer;
  }

  double weight() const { return weight_; }  // the chance of this run's answers

  // Makes ready for the next run; false when every outcome has been seen.
  bool next() {
    at_ = 0;
    weight_ = 1;
    for (; !questions_.empty(); questions_.pop_back()) {
      Question& last = questions_.back();
      last.answer = possible(last.chance, last.answer + 1);
      if (last.answer < int(last.chance.size())) return true;
    }
    return false;
  }

 private:
  struct Question {
    Chances chance;
    int answer;
  };
  static int possible(const Chances& chance, int from) {
    while (from < int(chance.size()) && !(chance[size_t(from)] > 0)) from++;
    return from;
  }
  std::vector<Question> questions_;  // those of this run
  size_t at_ = 0;                    // the next one
  double weight_ = 1;
};

// The number of the context after a node of the growing tree.
int context_of(const Growth& growth, int node, int vocab) {
  return node == 0 ? 0 : context_after(context_of(growth, growth.parent[node], vocab), growth.token[node], vocab);
}

// Up to `width` candidates after a node, chosen from q.
int choose_candidates(Chances q, Choosing choosing, int width, Outcomes& outcomes, Candidate* candidates) {
  for (int i = 0; i < width; i++) {
    const int token =
        choosing == Choosing::kTop ? int(std::max_element(q.begin(), q.end()) - q.begin()) : outcomes.choose(q);
    candidates[i] = {token, float(q[size_t(token)])};
    if (choosing != Choosing::kWithReplacement && !exclude(q, token)) return i + 1;
  }
  return width;
}

// Answers a rule's questions (rules/verify.h) out of a world, chance's by one outcome after the other.
struct EnumeratedOracle {
  const World& world;
  const Growth& growth;
  const Tree& tree;
  Outcomes& outcomes;

  int vocab() { return world.vocab; }
  size_t context(int node) { return size_t(context_of(growth, tree.origin[node], world.vocab)); }
  const double* p(int node) { return world.p[context(node)].data(); }
  const double* q(int node) { return world.q[context(node)].data(); }
  bool accept(int, double a) {
    a = a < 1 ? std::max(0.0, a) : a >= 1 ? 1 : 0;
    return outcomes.choose({1 - a, a}) == 1;
  }
  int draw(int, const double* weights) { return outcomes.choose(normalized(Chances(weights, weights + world.vocab))); }
  int pick(int node) { return outcomes.choose(world.p[context(node)]); }
};

// The chance that a text has each context, up to those of depth + 1 tokens, where `next` (p or q) continues what is
// emitted. emitted: [context] the chance that just these tokens are; {1}: none, what `next` alone says.
Chances continued(Chances emitted, const std::vector<Chances>& next) {
  const int vocab = int(next[0].size());
  emitted.resize(next.size() * size_t(vocab) + 1);
  for (size_t c = 0; c < next.size(); c++)
    for (int x = 0; x < vocab; x++) emitted[size_t(context_after(int(c), x, vocab))] += emitted[c] * next[c][size_t(x)];
  return emitted;
}

// Which texts of `length` tokens stand in the tree, one bit each, the first text's first.
uint32_t texts_in(const Growth& growth, int length, int vocab) {
  uint32_t texts = 0;
  for (int node = 0; node < growth.size(); node++)
    if (growth.depth[node] == length) texts |= 1u << (context_of(growth, node, vocab) - first_context(length, vocab));
  return texts;
}

// The greatest chance that a text with distribution p, however coupled with a random set of texts, is in that set:
// optimal transport with membership cost (Sun et al. 2023, SpecTr, arXiv 2310.15141), by its dual (Hu et al. 2025,
// arXiv 2502.18779), which is the least cut of the flow from sets to texts:
//   1 + min over sets Y of texts of (p(Y) - chance that the random set lies within Y).
// For one candidate that is sum_x min(p(x), q(x)). within: [set] the chance of the random set.
double best_membership(const Chances& p, Chances within) {
  Chances mass(within.size(), 0);  // p(Y)
  for (size_t x = 0; x < p.size(); x++)
    for (size_t set = 0; set < within.size(); set++)
      if (set >> x & 1) {
        within[set] += within[set ^ size_t(1) << x];
        mass[set] += p[x];
      }
  double best = 1;
  for (size_t set = 0; set < within.size(); set++) best = std::min(best, 1 + mass[set] - within[set]);
  return best;
}

// A bound on E[tokens] of every exact rule: a path is as long as l only if the text's first l tokens are in the tree,
// and the chance of that is at most best_membership, for each l by itself. For one level it is what the best rule
// reaches; for more, no rule need reach it. drafted: [l - 1][set] the chance that the tree holds this set of texts.
constexpr int kMostTexts = 16;  // sets of so many are gone through
double most_tokens(const World& world, const std::vector<Chances>& drafted, bool chain) {
  const Chances p = continued({1}, world.p), q = continued({1}, world.q);
  double tokens = 1;
  for (size_t l = 0; l < drafted.size(); l++) {
    const int first = first_context(int(l) + 1, world.vocab), end = first_context(int(l) + 2, world.vocab);
    if (!drafted[l].empty()) tokens += best_membership({p.begin() + first, p.begin() + end}, drafted[l]);
    else if (chain)
      for (size_t text = size_t(first); text < size_t(end); text++) tokens += std::min(p[text], q[text]);
  }
  return tokens;
}

}  // namespace

Exactness enumerate(const Study& study, const World& world) {
  const Shape shape = parse_shape(study.shape, 64);
  const int vocab = world.vocab;
  Exactness result;
  Chances emitted(size_t(first_context(shape.depth + 2, vocab)));  // [context]
  std::vector<Chances> drafted;
  for (int l = 1; l <= shape.depth; l++) {
    const int texts = first_context(l + 1, vocab) - first_context(l, vocab);
    drafted.emplace_back(texts <= kMostTexts ? size_t(1) << texts : 0);
  }

  Outcomes outcomes;
  Growth growth;
  Tree tree;
  do {
    growth.start(0);
    grow(shape, {shape.depth}, growth, [&](const int* nodes, int n, int width, Candidate* candidates, int* count) {
      for (int k = 0; k < n; k++) {
        const Chances& q = world.q[size_t(context_of(growth, nodes[k], vocab))];
        count[k] = choose_candidates(q, study.choosing, width, outcomes, candidates + k * width);
      }
    });
    flatten(growth, tree);
    EnumeratedOracle oracle = {world, growth, tree, outcomes};
    const Verdict verdict = study.rule == Rule::kTraversal
                                ? traversal(tree, oracle, study.choosing == Choosing::kWithReplacement)
                                : judge(study.rule, tree, oracle);

    int context = 0;
    for (int token : verdict.tokens) context = context_after(context, token, vocab);
    emitted[size_t(context)] += outcomes.weight();
    result.tokens += outcomes.weight() * double(verdict.tokens.size());
    for (int l = 1; l <= shape.depth; l++)
      if (!drafted[size_t(l - 1)].empty()) drafted[size_t(l - 1)][texts_in(growth, l, vocab)] += outcomes.weight();
    result.outcomes++;
  } while (outcomes.next());

  const Chances found = continued(emitted, world.p), wanted = continued({1}, world.p);
  for (size_t i = world.p.size(); i < wanted.size(); i++) result.distance += std::fabs(found[i] - wanted[i]) / 2;
  result.bound = most_tokens(world, drafted, shape.width == 1);
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Sampling

std::vector<SampledStudy> sampled_studies() {
  std::vector<SampledStudy> studies;
  for (size_t rule = 0; rule < std::size(kRules); rule++)
    for (bool filtered : {false, true})
      studies.push_back(
          {Rule(rule), kRules[rule].chains_only ? "chain:3" : "tree:3x2", filtered ? 0.7f : 1.0f, filtered ? 6 : 0});
  return studies;
}

namespace {

// The logits after a token: a table of standard normal numbers, times `spread`.
std::vector<float> random_table(int vocab, double spread, uint64_t seed) {
  std::vector<float> table;
  for (int i = 0; i < vocab * vocab; i++) {
    const double u = uniform(random_bits(seed, 2, kStreamInitialize, uint64_t(i), 0));
    const double v = uniform(random_bits(seed, 2, kStreamInitialize, uint64_t(i), 1));
    table.push_back(float(spread * std::sqrt(-2 * log(u)) * cos(6.283185307179586 * v)));
  }
  return table;
}

// A target (decode.h) whose logits depend on the last token alone.
struct TableTarget {
  const std::vector<float>& table;  // (V, V)
  int vocab, held;
  int64_t forwards;
  std::vector<int> last;  // of each row of the last forward

  int block_size() { return 64; }
  int vocab_size() { return vocab; }
  int past() { return held; }
  void prefill(const int*, int n) { held = n; }
  void forward(const int* token, const int*, const int*, int n) {
    last.assign(token, token + n);
    forwards++;
  }
  const float* logits(int row) { return table.data() + size_t(last[size_t(row)]) * size_t(vocab); }
  const float* hidden(int) { return nullptr; }
  const float* features(int) { return nullptr; }
  void keep(const int*, int n) { held += n; }
};

// Of counts under expected chances: distance, what chance makes of it, and z; cells that are expected fewer than five
// times count as one.
void judge_counts(const std::vector<double>& counts, const Chances& expected, double n, Sampled& result) {
  double statistic = 0, rare = 0, rare_expected = 0;
  int cells = 0;
  const auto add = [&](double count, double mean) {
    statistic += (count - mean) * (count - mean) / mean;
    cells++;
  };
  for (size_t i = 0; i < counts.size(); i++) {
    const double mean = n * expected[i];
    result.distance += std::fabs(counts[i] - mean) / n / 2;
    result.by_chance += std::sqrt(2 / 3.141592653589793 * mean * (1 - expected[i])) / n / 2;
    if (mean < 5) {
      rare += counts[i];
      rare_expected += mean;
    } else add(counts[i], mean);
  }
  if (rare_expected > 0) add(rare, rare_expected);
  else if (rare > 0) statistic = 1e9;  // what cannot happen has happened
  result.z = (statistic - (cells - 1)) / std::sqrt(2.0 * std::max(1, cells - 1));
}

}  // namespace

Sampled sample(const SampledStudy& study, int vocab, int samples, uint64_t seed) {
  const std::vector<float> table = random_table(vocab, 1.5, seed), other = random_table(vocab, 1.5, seed + 1);
  std::vector<float> guess;  // halfway between the target's opinion and one of its own
  for (size_t i = 0; i < table.size(); i++) guess.push_back(0.7f * table[i] + 0.5f * other[i]);
  TableTarget target = {table, vocab, 0, 0, {}};
  Bigram drafter(guess, vocab);
  Decoding decoding;
  decoding.shape = parse_shape(study.shape, 64);
  decoding.rule = study.rule;
  decoding.sampling.temperature = study.temperature;
  decoding.sampling.top_k = study.top_k;
  decoding.sampling.seed = seed;
  decoding.max_new_tokens = decoding.shape.depth + 1;

  Sampled result;
  const size_t v = size_t(vocab);
  std::vector<double> counts(v * v, 0);
  for (int i = 0; i < samples; i++) {
    decoding.sampling.sequence = uint32_t(i);
    std::vector<int> text = {0};
    const int64_t first = target.forwards + 1;
    generate(target, &drafter, decoding, text, [&](int) {
      result.tokens += target.forwards == first ? 1.0 / samples : 0;
      return true;
    });
    counts[size_t(text[1]) * v + size_t(text[2])]++;
  }

  std::vector<float> p(v);
  const auto after = [&](size_t token) {
    distribution(table.data() + token * v, vocab, decoding.sampling, p.data());
    return chances(p.data(), vocab);
  };
  Chances expected;
  const Chances root = after(0);
  for (size_t x = 0; x < v; x++)
    for (double chance : after(x)) expected.push_back(root[x] * chance);
  judge_counts(counts, expected, samples, result);
  return result;
}

}  // namespace nanospec
