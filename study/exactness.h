// study/exactness.h: the verification rules held against what they promise.
//
// In order: small worlds, in which the target and the drafter are tables; a rule's exact result in one, by enumeration;
// what is studied; a rule's result in a larger world, by sampling. What is enumerated is the code of rules/verify.h and
// tree.h, what is sampled is generate() itself. `nanospec exact` prints it all, tests/rules/test_verify.cpp holds it.
#pragma once

#include "rules/verify.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Worlds

// A target and a drafter over V tokens, each a table with one distribution for every context: the tokens after the
// root, none to `depth` of them. A context's number: see context_after.
struct World {
  std::string name;
  int vocab = 0;
  std::vector<Chances> p, q;  // [context] (V)
};

inline int context_after(int context, int token, int vocab) { return context * vocab + 1 + token; }  // 0: no token

// Worlds of many kinds, one of each for every seed: p and q random and independent, flat, uneven and peaked; q near p;
// q = p; q without some of p's tokens; p without some of q's; p and q without a common token. A wrong rule can be right
// in one by luck.
std::vector<World> make_worlds(int vocab, int depth, int seeds, uint64_t first_seed);

// ---------------------------------------------------------------------------------------------------------------
// Enumeration

// How a study chooses the candidates of a node: the likeliest tokens of q, or tokens drawn from q.
enum class Choosing { kTop, kWithReplacement, kWithoutReplacement };

// A rule, and the drafts that it judges.
struct Study {
  Rule rule;
  Choosing choosing;
  const char* shape;
  int vocab;
};
extern const std::vector<Study> kStudies;

// The negative control is drawn without replacement and judged as if with: it must be seen to fail.
bool is_control(const Study& study);
Promise promise_of(const Study& study);

struct Exactness {
  double distance = 0;  // total variation, from what is emitted, completed by p to depth + 1 tokens, to p alone
  double tokens = 0;    // expected of a forward
  double bound = 0;     // what no exact rule can exceed with these drafts: see most_tokens in exactness.cpp
  int64_t outcomes = 0;
};

// Goes through every draft and every outcome of chance, and sums.
Exactness enumerate(const Study& study, const World& world);

constexpr double kRounding = 1e-12;  // an exact rule's distance is below it

// ---------------------------------------------------------------------------------------------------------------
// Sampling

struct SampledStudy {
  Rule rule;
  const char* shape;
  float temperature;
  int top_k;
};
std::vector<SampledStudy> sampled_studies();

struct Sampled {
  double distance = 0;   // total variation, of the first two tokens, from the product of the target's distributions
  double by_chance = 0;  // that as many draws from the target itself would have, on average
  double z = 0;          // chi-square, in standard deviations above its mean: a right rule is within a few
  double tokens = 0;     // mean of the first forward
};
constexpr double kFarZ = 6;  // so far a right rule comes less than once in 100,000 times

// Generates `samples` texts of a few tokens by generate(): a target and a drafter of `vocab` tokens whose tables are
// random.
Sampled sample(const SampledStudy& study, int vocab, int samples, uint64_t seed);

}  // namespace nanospec
