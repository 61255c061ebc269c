// course/chapter3.cpp: the student's bigram_table and top_candidates, for the grader and for two tables.
#include <cstdio>
#include <numeric>

#include "course/files.h"
#include "course/student.h"
#include "draft.h"

using namespace nanospec;

namespace course {
namespace {

constexpr int kBehind = 4;  // candidates behind the last one that may be written

// The best `width` of these logits: so many as there are; and what stands behind.
std::vector<Candidate> candidates_of(const std::vector<float>& logits, int width, int& found) {
  const Sampling sampling;
  const Draws draws{&sampling, nullptr, 0, false};
  std::vector<float> scores(logits.size());
  std::vector<Candidate> best(size_t(width + kBehind), {-7, -7});
  found = top_candidates(Solo{}, logits.data(), nullptr, int(logits.size()), draws, width, best.data(), scores.data());
  return best;
}

}  // namespace

// 'b': texts, each with its V -> their tables. 't': rows of logits, each with its width -> for each how many are found,
// and the tokens and chances of the places for them, and of kBehind more.
Message answer(Message& question) {
  const bool tables = question.get<char>() == 'b';
  return answer_each(question, [&](Message& answer) {
    const int number = question.get<int>();
    if (tables) {
      answer.put(bigram_table(question.list<int>(), size_t(number)));
      return;
    }
    int found = 0;
    const std::vector<Candidate> best = candidates_of(question.list<float>(), number, found);
    std::vector<int> token;
    std::vector<float> chance;
    for (const Candidate& one : best) {
      token.push_back(one.token);
      chance.push_back(one.chance);
    }
    answer.put(found).put(token).put(chance);
  });
}

// The text that `make play` trains on, if it is there; else the pages of the course.
std::vector<int> text_of_measure(std::string& name) {
  for (const char* path : {"data/tinyshakespeare.txt", "data/shakespeare.txt"})
    if (std::vector<int> text = bytes_of(path); !text.empty()) {
      name = path;
      if (text.size() > 1200000) text.resize(1200000);
      return text;
    }
  std::vector<int> pages;
  name = "the pages of this course";
  for (int chapter = 1; chapter <= 12; chapter++) {
    const std::vector<int> page = bytes_of("course/chapter" + std::to_string(chapter) + ".md");
    pages.insert(pages.end(), page.begin(), page.end());
  }
  return pages;
}

// In how many places of `text` the next byte is among the first 1, 2, 4, 8 guesses, in percent.
std::array<double, 4> hits(const std::vector<float>& table, const std::vector<int>& text) {
  std::array<double, 4> hits{};
  for (size_t i = 1; i < text.size(); i++) {
    const float* const row = &table[size_t(text[i - 1]) * 256];
    int found = 0;
    const std::vector<Candidate> best = candidates_of({row, row + 256}, 8, found);
    for (int rank = 0; rank < found; rank++)
      for (size_t w = 0; best[rank].token == text[i] && w < 4; w++) hits[w] += rank < 1 << w;
  }
  for (double& one : hits) one *= 100.0 / double(text.size() - 1);
  return hits;
}

void measure() {
  std::string name;
  std::vector<int> text = text_of_measure(name);
  const size_t held_out = std::min<size_t>(20000, text.size() / 5);
  const std::vector<int> unseen(text.end() - long(held_out), text.end());
  text.resize(text.size() - held_out);
  printf("The next byte is among the first guesses, in percent of %zu places that the table has not counted\n",
         held_out - 1);
  printf("(text: %s)\n\n  bytes counted    1 guess   2 guesses   4 guesses   8 guesses\n", name.c_str());
  for (size_t n : {size_t(0), size_t(1000), size_t(10000), size_t(100000), text.size()}) {
    if (n > text.size()) continue;
    const auto rates = hits(bigram_table({text.begin(), text.begin() + long(n)}, 256), unseen);
    printf("%15zu %8.1f %% %9.1f %% %9.1f %% %9.1f %%\n", n, rates[0], rates[1], rates[2], rates[3]);
  }
  printf("\nMicroseconds to find the best of V scores\n\n         V      1 best      8 best     a sort of all\n");
  for (int V : {256, 4096, 50257}) {
    std::vector<float> logits(static_cast<size_t>(V));
    for (int x = 0; x < V; x++) logits[x] = float(int64_t(x) * 7919 % V) / float(V);
    const Sampling sampling;
    const Draws draws{&sampling, nullptr, 0, false};
    std::vector<float> scores(logits.size());
    std::vector<Candidate> best(8);
    double micro[2];
    for (int w = 0; w < 2; w++)
      micro[w] = 1e6 * fastest(20, [&] {
                   top_candidates(Solo{}, logits.data(), nullptr, V, draws, w ? 8 : 1, best.data(), scores.data());
                 });
    std::vector<int> order(logits.size());
    const double sorted = 1e6 * fastest(5, [&] {
                            std::iota(order.begin(), order.end(), 0);
                            std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
                          });
    printf("%10d %11.1f %11.1f %17.1f\n", V, micro[0], micro[1], sorted);
  }
}

}  // namespace course
