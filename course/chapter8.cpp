// course/chapter8.cpp: the student's noise and pick, for the grader and for a table.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "course/lanes.h"
#include "course/places8.h"
#include "course/student.h"
#include "course/text6.h"
#include "sample.h"

using namespace nanospec;

namespace course {
namespace {

Sampling sampled(const Place& place) {
  Sampling sampling;
  sampling.seed = place.seed;
  sampling.sequence = place.sequence;
  return sampling;
}

// The student's row of noise, behind which nothing may have been written.
std::vector<float> noise_at(const Place& place, int V, int lanes = 0) {
  const size_t end = size_t(whole(V, kNoiseBlock));
  std::vector<float> row(4 * end, NAN);  // as far as four numbers for each token would go
  with_lanes(lanes, [&](const auto& group) {
    make_noise(group, sampled(place), Stream(place.stream), place.index, V, row.data());
  });
  for (size_t x = end; x < row.size(); x++)
    if (!std::isnan(row[x]))
      throw std::runtime_error("number " + std::to_string(x) + " was written, behind the end of the row, of " +
                               std::to_string(V));
  row.resize(size_t(V));
  return row;
}

// V, lanes, places -> their rows of noise, one behind the other
Message noises(Message& question) {
  const auto [V, lanes] = question.get<std::array<int, 2>>();
  std::vector<float> all;
  for (const Place& place : question.list<Place>()) {
    const auto row = noise_at(place, V, lanes);
    all.insert(all.end(), row.begin(), row.end());
  }
  return Message().put(all);
}

// lanes, top_k, temperature, top_p, min_p, logits, rows of noise (none: one pick without) -> the picks
Message picks(Message& question) {
  const auto [lanes, top_k] = question.get<std::array<int, 2>>();
  Sampling sampling;
  sampling.top_k = top_k;
  sampling.temperature = question.get<float>();
  sampling.top_p = question.get<float>();
  sampling.min_p = question.get<float>();
  const auto logits = question.list<float>(), noise = question.list<float>();
  const int V = int(logits.size());
  std::vector<int> all;
  for (size_t at = 0; at == 0 || at < noise.size(); at += size_t(V))
    with_lanes(lanes, [&](const auto& group) {
      all.push_back(pick(group, logits.data(), noise.empty() ? nullptr : &noise[at], V, sampling));
    });
  return Message().put(all);
}

// ---------------------------------------------------------------------------------------------------------------
// Decoding: a model whose logits are a hash of the text, and full trees, whose nodes are numbered level by level

struct Decoding {
  int V, depth, width, order, count;  // order: of a forward's rows: 0 from the first on, 1 from the last, 2 mixed
  Place place;                        // of the text's first token
  bool by_draws = false;              // noise by the number of rows drawn so far, not by place
  int64_t drawn = 0;

  // The pick after a text of this hash, for the token at this index.
  int pick_after(uint64_t text, int64_t index) {
    std::vector<float> logits(size_t(V), 0.0f);
    for (int x = 0; x < V; x++) logits[x] = float(mixed(text, uint64_t(x)) >> 40) * 0x1p-22f;  // in [0, 4)
    Place its = place;
    its.index += by_draws ? drawn++ : index;
    return pick(logits.data(), noise_at(its, V).data(), V, sampled(its));
  }
  // The drafter's guess number `rank` after a text: its likeliest are the last tokens' neighbours.
  int guess(uint64_t text, int rank) const {
    int best = 0;
    for (int x = 1; x < V; x++)
      if (mixed(text, uint64_t(x)) >> 40 > mixed(text, uint64_t(best)) >> 40) best = x;
    return (best + rank) % V;
  }

  std::vector<int> run() {
    int nodes = 1;
    for (int level = 0, many = 1; level < depth; level++) nodes += many *= width;
    std::vector<int> text;
    std::vector<uint64_t> hash(size_t(nodes), 0);  // of the text up to a node, and with it
    std::vector<int> token(size_t(nodes), 0), picked(size_t(nodes), 0), level(size_t(nodes), 0), rows(size_t(nodes), 0);
    while (int(text.size()) < count) {
      for (int node = 1; node < nodes; node++) {
        const int above = (node - 1) / width;
        level[node] = level[above] + 1;
        token[node] = guess(hash[above], (node - 1) % width);
        hash[node] = mixed(hash[above], uint64_t(token[node]));
      }
      for (int i = 0; i < nodes; i++) rows[i] = i;
      if (order == 1) std::reverse(rows.begin(), rows.end());
      if (order == 2)
        for (int i = nodes - 1; i > 0; i--)
          std::swap(rows[i], rows[(mixed(hash[0], uint64_t(i)) >> 20) % uint64_t(i + 1)]);
      for (int node : rows) picked[node] = pick_after(hash[node], int64_t(text.size()) + level[node]);
      for (int node = 0; node < nodes;) {
        text.push_back(picked[node]);
        hash[0] = mixed(hash[0], uint64_t(picked[node]));
        int next = nodes;
        for (int rank = 0; rank < width; rank++)
          if (const int below = node * width + 1 + rank; below < nodes && token[below] == picked[node]) next = below;
        node = next;
      }
    }
    text.resize(size_t(count));
    return text;
  }
};

}  // namespace

Message answer(Message& question) {
  const char what = question.get<char>();
  if (what == 'n') return noises(question);
  if (what == 'p') return picks(question);
  // V, depth, width, order, count, place -> the text
  const auto [V, depth, width, order, count] = question.get<std::array<int, 5>>();
  return Message().put(Decoding{V, depth, width, order, count, question.get<Place>()}.run());
}

// ---------------------------------------------------------------------------------------------------------------
// The tables

// How often the picks of p and of q are the same token: with one row of noise, and with a row each.
void measure_coupling() {
  constexpr int V = 8, rounds = 200000;
  printf("Picks of two models at %d places. TV: total variation distance of p and q, as in chapter 4.\n\n", rounds);
  printf("    TV     1 - TV     the same pick, one noise     the same pick, a noise for each\n");
  for (double part = 0; part <= 1; part += 0.125) {  // q goes from p to its reverse
    std::vector<float> p(V), q(V);
    double tv = 0;
    for (int x = 0; x < V; x++) {
      const double of_p = (x + 1) / 36.0, of_q = (1 - part) * of_p + part * (V - x) / 36.0;
      tv += std::max(0.0, of_p - of_q);
      p[x] = float(log(of_p));
      q[x] = float(log(of_q));
    }
    int shared = 0, own = 0;
    for (int i = 0; i < rounds; i++) {
      const auto noise = noise_at({1, i, 0, kStreamSample}, V), other = noise_at({1, i, 0, kStreamDraft}, V);
      const int target = pick(p.data(), noise.data(), V, {});
      shared += pick(q.data(), noise.data(), V, {}) == target;
      own += pick(q.data(), other.data(), V, {}) == target;
    }
    printf("%6.3f %10.3f %28.3f %35.3f\n", tv, 1 - tv, double(shared) / rounds, double(own) / rounds);
  }
}

// The first token at which the text parts from that of plain decoding; -1: none of them.
int parts_at(int depth, int width, int order, bool by_draws) {
  constexpr int count = 3000;
  const Place place{1, 0, 0, kStreamSample};
  const auto plain = Decoding{40, 0, 1, 0, count, place, by_draws}.run();
  const auto tree = Decoding{40, depth, width, order, count, place, by_draws}.run();
  const auto at = std::mismatch(plain.begin(), plain.end(), tree.begin()).first;
  return at == plain.end() ? -1 : int(at - plain.begin());
}

void measure() {
  printf("The token at which the text of 3000 parts from that of plain decoding; -: at none\n\n");
  printf("  tree          nodes     noise by place     by the number of draws     from the last row on\n");
  const struct {
    const char* name;
    int depth, width, nodes;
  } shapes[] = {
      {"none", 0, 1, 0}, {"chain:1", 1, 1, 1}, {"chain:4", 4, 1, 4}, {"tree:2x2", 2, 2, 6}, {"tree:3x2", 3, 2, 14}};
  for (const auto& shape : shapes) {
    printf("  %-12s %6d", shape.name, shape.nodes);
    const int widths[] = {19, 27, 25};
    for (int column = 0; column < 3; column++) {
      const int at = parts_at(shape.depth, shape.width, column == 2, column > 0);
      printf("%*s", widths[column], at < 0 ? "-" : std::to_string(at).c_str());
    }
    printf("\n");
  }
  printf("\n");
  measure_coupling();
}

}  // namespace course
