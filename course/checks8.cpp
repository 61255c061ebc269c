// course/checks8.cpp: the grader's checks of chapter 8: noise by place, and the pick. Distributions are judged by
// chi-square, with limits that a right answer passes in all but one of 10^7 gradings.
#include <algorithm>
#include <numeric>

#include "course/judge.h"
#include "course/places8.h"
#include "machine/numbers.h"

namespace course {
namespace {

std::string words(const Place& place) {
  return line_of("index ", int(place.index), ", sequence ", int(place.sequence), ", stream ", int(place.stream));
}
std::vector<float> noises(Examiner& judge, int V, const std::vector<Place>& places, int lanes = 0) {
  const auto all = judge.student.ask(Message().put('n').put(V).put(lanes).put(places)).list<float>();
  if (all.size() != places.size() * size_t(V)) not_passed(int(all.size()), " numbers of noise");
  for (size_t i = 0; i < all.size(); i++)
    if (!std::isfinite(all[i]))
      not_passed(words(places[i / size_t(V)]), ", vocabulary ", V, ": the noise of token ", int(i % size_t(V)), " is ",
                 all[i], std::isnan(all[i]) ? ": does every token get some?" : "");
  return all;
}
Place place_of(Examiner& judge) {
  return {judge.random(), judge.below(100000), uint32_t(judge.below(1000)), uint32_t(judge.below(4))};
}
std::vector<Place> places_of(Examiner& judge, int n) {
  return times(n, [&] { return place_of(judge); });
}

// Which of so many intervals, all equally likely, the noise lies in: its distribution function is exp(-exp(-g)).
int bin(float g, int bins) { return std::min(bins - 1, int(nanospec::exp(-nanospec::exp(-double(g))) * bins)); }

// The sum of (count - expected)^2 / expected.
double chi_square(const std::vector<double>& count, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < count.size(); i++)
    if (expected[i] > 0) sum += (count[i] - expected[i]) * (count[i] - expected[i]) / expected[i];
  return sum;
}
// What chi-square stays below in all but one of 10^9 cases (Wilson, Hilferty 1931).
double limit(int freedom) {
  const double a = 2.0 / (9.0 * freedom);
  const double root = 1 - a + 6 * std::sqrt(a);
  return freedom * root * root * root;
}

void is_gumbel(Examiner& judge) {
  constexpr int V = 300, rows = 300, bins = 64;
  const std::vector<Place> places = places_of(judge, rows);
  const auto all = noises(judge, V, places);
  std::vector<double> count(bins, 0), expected(bins, double(all.size()) / bins);
  for (int row = 0; row < rows; row++) {  // of so few draws of 32 bits hardly two are the same
    std::map<float, int> first;
    int same = 0;
    for (int x = 0; x < V; x++) {
      const auto [at, is_new] = first.insert({all[row * V + x], x});
      if (!is_new && ++same == V / 10)
        not_passed(words(places[row]), ": many tokens have the same noise, for instance ", at->second, " and ", x);
    }
  }
  for (float one : all) count[bin(one, bins)]++;
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / double(all.size());
  if (std::abs(mean - 0.5772) > 0.04)
    not_passed("the mean of ", int(all.size()), " draws is ", mean,
               ", that of Gumbel's distribution 0.5772: is it -log(-log(u))?");
  if (const double off = chi_square(count, expected); !(off < limit(bins - 1)))
    not_passed("chi-square of ", int(all.size()), " draws in ", bins, " intervals is ", off, ", should be near ",
               bins - 1, ": the distribution is not Gumbel's");
}

// The two lists must be independent: pairs fall into 8 x 8 squares alike.
void independent(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  constexpr int bins = 8;
  std::vector<double> count(bins * bins, 0), of_a(bins, 0), of_b(bins, 0), expected;
  size_t same = 0;
  for (size_t i = 0; i < a.size(); i++) {
    const size_t x = size_t(bin(a[i], bins)), y = size_t(bin(b[i], bins));
    count[x * bins + y]++;
    of_a[x]++;
    of_b[y]++;
    same += a[i] == b[i];
  }
  if (same > a.size() / 100 + 1) not_passed(what, ": ", int(same), " of ", int(a.size()), " draws are the same");
  for (double x : of_a)  // whatever the distribution
    for (double y : of_b) expected.push_back(x * y / double(a.size()));
  constexpr int freedom = (bins - 1) * (bins - 1);
  if (const double off = chi_square(count, expected); !(off < limit(freedom)))
    not_passed(what, ": chi-square of pairs is ", off, ", should be near ", freedom, ": they are not independent");
}

void every_place_has_its_own(Examiner& judge) {
  constexpr int V = 300, rows = 60;
  const std::pair<const char*, void (*)(Place&)> moves[] = {
      {"one index and the next", [](Place& place) { place.index++; }},
      {"one index and the 64th behind it", [](Place& place) { place.index += 64; }},
      {"one sequence and the next", [](Place& place) { place.sequence++; }},
      {"one stream and the next", [](Place& place) { place.stream++; }},
      {"one seed and the next", [](Place& place) { place.seed++; }},
      {"two seeds that differ in their upper half", [](Place& place) { place.seed ^= uint64_t(1) << 40; }}};
  for (const auto& [name, move] : moves) {
    const std::vector<Place> here = places_of(judge, rows);
    std::vector<Place> there = here;
    std::for_each(there.begin(), there.end(), move);
    independent(noises(judge, V, here), noises(judge, V, there), name);
  }
  for (int apart : {1, 2, 3, 4, 16, 32, 64, 96, 128, 256}) {
    const auto all = noises(judge, V, places_of(judge, rows));
    std::vector<float> a, b;
    for (int row = 0; row < rows; row++)
      for (int x = 0; x + apart < V; x++) {
        a.push_back(all[row * V + x]);
        b.push_back(all[row * V + x + apart]);
      }
    independent(a, b, line_of("token x and token x + ", apart, " of one row"));
  }
}

void any_order(Examiner& judge) {
  for (int V : {1, 65, 129, 300}) {
    const std::vector<Place> places = places_of(judge, 20), reversed(places.rbegin(), places.rend());
    const auto once = noises(judge, V, places), again = noises(judge, V, places), back = noises(judge, V, reversed),
               lanes = noises(judge, V, places, 1);
    for (size_t i = 0; i < once.size(); i++) {
      const size_t row = i / size_t(V), x = i % size_t(V);
      const auto same = [&](float got, const char* when) {
        same_bits({got}, {once[i]}, [&](int) {
          return line_of(words(places[row]), ", vocabulary ", V, ": the noise of token ", int(x), ", ", when, ",");
        });
      };
      same(again[i], "asked for again");
      same(back[(places.size() - 1 - row) * size_t(V) + x], "asked for in another order");
      same(lanes[i], "with lanes in another order");
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The pick

struct Settings {
  int lanes = 0, top_k = 0;
  float temperature = 1, top_p = 1, min_p = 0;
};

std::vector<int> picks(Answerer& who, const Settings& s, const std::vector<float>& logits,
                       const std::vector<float>& noise) {
  return who.ask(Message().put('p').put(s).put(logits).put(noise)).list<int>();
}

// Eighths, from -most to most: with a temperature that is a power of two no sum is rounded, whatever its order; many
// are equal.
std::vector<float> eighths(Examiner& judge, size_t n, int most) {
  return times(int(n), [&] { return float(judge.between(-8 * most, 8 * most)) / 8; });
}

void picks_as_reference(Examiner& judge, Settings settings, const std::vector<float>& logits,
                        const std::vector<float>& noise) {
  const auto right = picks(judge.reference, settings, logits, noise),
             got = picks(judge.student, settings, logits, noise);
  const size_t V = logits.size();
  for (size_t i = 0; i < right.size(); i++)
    if (i >= got.size() || got[i] != right[i]) {
      const auto row = noise.empty() ? noise : std::vector<float>(&noise[i * V], &noise[i * V] + V);
      const auto of = [&](int x) {
        if (x < 0 || x >= int(V)) return line_of("token ", x, ", which is none");
        const long larger = std::count_if(logits.begin(), logits.end(), [&](float y) { return y > logits[x]; });
        return line_of("token ", x, " (logit ", logits[x], ", with ", int(larger), " above it",
                       noise.empty() ? "" : ", noise ", noise.empty() ? "" : text_of(row[x]), ")");
      };
      not_passed("temperature ", settings.temperature, ", top-k ", settings.top_k, ", top-p ", settings.top_p,
                 ", min-p ", settings.min_p, ", logits ", logits, noise.empty() ? ", without noise" : ", noise ",
                 noise.empty() ? "" : text_of(row), ": it picks ", of(i < got.size() ? got[i] : -1), ", should be ",
                 of(right[i]));
    }
}

void no_temperature(Examiner& judge) {
  for (int lanes : {0, 1})
    for (int V : {1, 2, 5, 40, 200}) {
      const Settings cold{lanes, 0, 0};
      picks_as_reference(judge, cold, judge.numbers(size_t(V), 5), {});
      picks_as_reference(judge, cold, eighths(judge, size_t(V), 1), {});  // ties
      picks_as_reference(judge, cold, std::vector<float>(size_t(V), -1e30f), {});
    }
}
void ties_and_nan(Examiner& judge) {
  for (int lanes : {0, 1})
    for (int i = 0; i < 20; i++) {
      const size_t V = size_t(judge.between(2, 60));
      auto logits = eighths(judge, V, 1);
      Settings settings{lanes};
      picks_as_reference(judge, settings, logits, eighths(judge, 20 * V, 1));
      for (float& x : logits)
        if (judge.below(4) == 0) x = NAN;
      settings.temperature = i % 2 ? 1 : 0;
      picks_as_reference(judge, settings, logits, i % 2 ? eighths(judge, 20 * V, 1) : std::vector<float>());
    }
}
void temperatures_and_limits(Examiner& judge) {
  for (float temperature : {0.25f, 0.5f, 2.0f, 8.0f})
    for (size_t V : {7, 60}) {
      const auto noise = eighths(judge, 50 * V, 8);
      picks_as_reference(judge, {0, 0, temperature}, eighths(judge, V, 4), noise);
    }
  for (int i = 0; i < 12; i++) {
    const size_t V = size_t(judge.between(6, 60));
    Settings keeps{0, 0, i % 2 ? 1.0f : 2.0f};
    if (i % 3 == 0) keeps.top_k = judge.between(1, 4);
    if (i % 3 == 1) keeps.top_p = 0.3f + 0.05f * float(judge.below(10));
    if (i % 3 == 2) keeps.min_p = 0.1f + 0.05f * float(judge.below(10));
    const auto noise = eighths(judge, 30 * V, 20);
    picks_as_reference(judge, keeps, eighths(judge, V, 4), noise);
  }
}

// The student's picks by the student's noise are a sample of the softmax.
void samples_softmax(Examiner& judge, float temperature) {
  constexpr int V = 8, count = 20000;
  const auto logits = judge.numbers(V, 1.5);
  std::vector<Place> places(count, place_of(judge));
  for (int i = 0; i < count; i++) places[i].index += i;
  const auto got = picks(judge.student, {0, 0, temperature}, logits, noises(judge, V, places));
  std::vector<double> seen(V, 0), expected(V, 0);
  double sum = 0;
  for (int x = 0; x < V; x++) sum += expected[x] = nanospec::exp(double(logits[x] / temperature));
  for (double& x : expected) x *= count / sum;
  for (int x : got) {
    if (x < 0 || x >= V) not_passed("it picks token ", x, " of ", V);
    seen[x]++;
  }
  const double off = chi_square(seen, expected);
  if (off < limit(V - 1)) return;
  int worst = 0;
  for (int x = 0; x < V; x++)
    if (std::abs(seen[x] - expected[x]) > std::abs(seen[worst] - expected[worst])) worst = x;
  not_passed("temperature ", temperature, ", logits ", logits, ": of ", count, " picks token ", worst, " has ",
             int(seen[worst]), ", should have about ", int(expected[worst]), " (chi-square ", off, ")");
}

void tree_is_plain(Examiner& judge) {
  constexpr int count = 3000;
  const Place place = place_of(judge);
  const struct { int depth, width; } shapes[] = {{0, 1}, {1, 1}, {4, 1}, {2, 2}, {3, 2}, {1, 8}};
  std::vector<int> plain;
  for (const auto& shape : shapes)
    for (int order = 0; order < (shape.depth ? 3 : 1); order++) {
      const std::array<int, 5> sizes{30, shape.depth, shape.width, order, count};
      const auto text = judge.student.ask(Message().put('d').put(sizes).put(place)).list<int>();
      if (plain.empty()) plain = text;
      for (int i = 0; i < count; i++)
        if (text.at(size_t(i)) != plain.at(size_t(i)))
          not_passed("depth ", shape.depth, ", ", shape.width, " children each, the rows of a forward ",
                     order == 0   ? "in order"
                     : order == 1 ? "from the last to the first"
                                  : "in a mixed order",
                     ": token ", i, " is ", text[i], ", plain decoding has ", plain[i]);
    }
}

}  // namespace

Chapter chapter8() {
  return {8,
          "noise by place",
          {{"noise: Gumbel's distribution", 2, is_gumbel},
           {"noise: every place has its own", 2, every_place_has_its_own},
           {"noise: the same bits in any order", 1, any_order},
           {"pick: temperature 0", 1, no_temperature},
           {"pick: ties and NaN", 1, ties_and_nan},
           {"pick: temperatures, and what top-k, top-p and min-p keep", 1, temperatures_and_limits},
           {"both: a sample of the softmax", 1, cases(samples_softmax, {{1.0f}, {0.5f}, {2.0f}})},
           {"both: 3,000 tokens by trees are those of plain decoding", 1, tree_is_plain}}};
}

}  // namespace course
