// course/checks6.cpp: the grader's checks of chapter 6: match, the gather, and both in a decoding whose text is known.
#include <set>

#include "course/judge.h"
#include "course/text6.h"

namespace course {
namespace {

// Every node picks a token; siblings carry different ones.
void matches(Examiner& judge, int many) {
  for (int i = 0; i < many; i++) {
    const int n = judge.between(1, 15), V = judge.between(8, 30);
    const std::vector<int> parent = judge.shape(n, judge.unit());
    std::vector<int> token(n), picks(n), children(n, 0);
    for (int node = 0; node < n; node++) {
      const int above = parent[node];
      token[node] = node == 0 ? judge.below(V) : (picks[above] + children[above]++ * 7 + judge.below(2)) % V;
      picks[node] = judge.below(V);
    }
    std::set<std::pair<int, int>> siblings;
    for (int node = 1; node < n; node++) siblings.insert({parent[node], token[node]});
    if (int(siblings.size()) < n - 1) continue;
    Message answer = judge.student.ask(Message().put('m').put(token).put(parent).put(picks));
    const auto rows = answer.list<int>(), tokens = answer.list<int>(), asked = answer.list<int>();
    const auto wrong = [&](const std::string& what) {
      not_passed("tree with parents ", parent, ", tokens ", token, ", picks ", picks, ": rows ", rows, ", tokens ",
                 tokens, ": ", what);
    };
    if (rows.empty() || rows[0] != 0) wrong("the first row is the root");
    if (rows.size() != tokens.size()) wrong("as many rows as tokens");
    for (size_t r = 0; r < rows.size(); r++) {
      if (rows[r] < 0 || rows[r] >= n) wrong("a row that the tree does not have");
      if (r > 0 && parent[rows[r]] != rows[r - 1]) wrong(line_of("row ", rows[r], " is no child of ", rows[r - 1]));
      if (tokens[r] != picks[rows[r]]) wrong(line_of("tokens[", int(r), "] should be the pick of row ", rows[r]));
      if (r > 0 && token[rows[r]] != tokens[r - 1]) wrong(line_of("row ", rows[r], " carries another token"));
    }
    if (siblings.count({rows.back(), tokens.back()}))
      wrong("a child of the last row carries the last token: the walk goes on");
    if (asked != rows) wrong(line_of("it asked for the picks of ", asked, ": those of the path, once each, in turn"));
  }
}

void gathers(Examiner& judge, int first, const std::vector<int>& kept, int lanes) {
  const int layers = 2, heads = 2, D = judge.between(1, 9), slots = 128;
  const std::array<int, 6> sizes{layers, heads, slots, D, first, lanes};
  const size_t one = size_t(layers) * heads * D * 2;  // numbers of a slot
  const auto before = judge.numbers(one * slots);
  const auto after = judge.student.ask(Message().put('g').put(sizes).put(kept).put(before)).list<float>();
  for (int slot = 0; slot < slots; slot++) {
    const int i = slot - first;
    if (i >= int(kept.size()) && i < 64) continue;  // what a rejected row leaves behind is free
    const int from = i >= 0 && i < int(kept.size()) ? first + kept[i] : slot;
    for (size_t n = 0; n < one; n++)
      if (after.at(slot * one + n) != before[from * one + n])
        not_passed("kept rows ", kept, " from slot ", first, ": slot ", slot,
                   from == slot ? " should stay" : " should hold slot ", from == slot ? "" : text_of(from), ", and ",
                   n % 2 ? "value" : "key", " ", int(n / 2 % D), " of head ", int(n / 2 / D % heads), " is ",
                   after[slot * one + n], ", not ", before[from * one + n]);
  }
}

struct Shape {
  const char* name;
  std::vector<int> parent;
};
// One of each kind; of those that look at chances, trees as they grow.
std::vector<Shape> shapes(Examiner& judge) {
  std::vector<Shape> all = {{"none", {-1}},
                            {"chain:4", chain(5)},
                            {"chain:12", chain(13)},
                            {"tree:1x8", {-1, 0, 0, 0, 0, 0, 0, 0, 0}},
                            {"tree:3x2", {-1, 0, 1, 2, 2, 1, 5, 5, 0, 8, 9, 9, 8, 12, 12}},
                            {"cartesian:3,1,2", {-1, 0, 1, 2, 2, 0, 5, 6, 6, 0, 9, 10, 10}}};
  for (int i = 0; i < 6; i++) all.push_back({"a tree as it grows", judge.shape(judge.between(3, 24), judge.unit())});
  return all;
}

void decodes(Examiner& judge, const Shape& shape, int percent, int lanes, int count) {
  const int V = judge.between(20, 60), length = judge.between(1, 9);
  const uint64_t seed = judge.random();
  std::vector<int> text = times(length, [&] { return judge.below(V); });
  const std::array<int, 4> sizes{V, percent, lanes, count};
  Message answer = judge.student.ask(Message().put('d').put(sizes).put(seed).put(shape.parent).put(text));
  const auto got = answer.list<int>();
  const auto where = [&] {
    return line_of(shape.name, " (parents ", shape.parent, "), drafts right in ", percent, " percent of places: ");
  };
  std::vector<uint64_t> hash = {seed};  // of the text's first tokens, so many
  for (int i = 0; i < length + count + int(shape.parent.size()); i++) {
    if (i >= length) text.push_back(next_token(hash[i], V));
    if (i < length + count && (i >= int(got.size()) || got[i] != text[i]))
      not_passed(where(), "token ", i - length, " is ", i < int(got.size()) ? got[i] : -1, ", plain decoding has ",
                 text[i]);
    hash.push_back(longer_text(hash[i], text[i], i));
  }
  int forwards = 0;
  for (int n = length; n < length + count; forwards++)
    for (int node = 0; node >= 0; n++) {  // node has the text's token n - 1
      int next = -1, rank = 0;
      for (int child = node + 1; child < int(shape.parent.size()) && next < 0; child++)
        if (shape.parent[child] == node && drafted(hash[n], rank++, percent, V) == text[n]) next = child;
      node = next;
    }
  if (const int counted = answer.get<int>(); counted != forwards)
    not_passed(where(), counted, " forwards, should be ", forwards, ": is every right guess accepted?");
}

}  // namespace

Chapter chapter6() {
  return {6,
          "verify and keep",
          {{"match: the tree of the page", 1,
            [](Examiner& judge) {
              const std::vector<int> token = {7, 3, 8, 9, 5, 2}, parent = {-1, 0, 1, 1, 0, 4},
                                     picks = {3, 9, 1, 4, 6, 6};
              Message answer = judge.student.ask(Message().put('m').put(token).put(parent).put(picks));
              const auto rows = answer.list<int>(), tokens = answer.list<int>();
              if (rows != std::vector<int>{0, 1, 3} || tokens != std::vector<int>{3, 9, 4})
                not_passed("rows ", rows, ", tokens ", tokens, ": should be [0 1 3] and [3 9 4]");
            }},
           {"match: 3,000 trees", 3, [](Examiner& judge) { matches(judge, 3000); }},
           {"gather: kept rows, every layer and head", 2,
            cases(gathers, {{0, {0}, 0}, {5, {0, 1, 2, 3}, 0}, {0, {0, 2, 3, 7}, 0}, {13, {0, 3, 4, 9, 40}, 0}})},
           {"gather: lanes in another order", 1, cases(gathers, {{30, {0, 1, 5, 6, 9, 12}, 1}})},
           {"decoding: the bytes of plain decoding, all shapes", 3, [](Examiner& judge) {
              for (const Shape& shape : shapes(judge))
                for (int percent : {0, 40, 80, 100}) decodes(judge, shape, percent, percent == 40, 40);
            }}}};
}

}  // namespace course
