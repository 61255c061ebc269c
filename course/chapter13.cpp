// course/chapter13.cpp: the student's entry for the race, for the grader and for a table.
#include <cstdio>

#include "course/files.h"
#include "course/lap.h"
#include "course/race.h"
#include "course/student.h"

namespace course {
namespace {

Guesses grown(const Racer& racer, const std::vector<int>& text) {
  Growth growth;
  growth.start(text.back());
  racer(text, growth);
  return {growth.token, growth.parent};
}

}  // namespace

// corpus, vocab -> nothing; later: what was written since -> tokens, parents
Message answer(Message& question) {
  static Racer entry;
  static std::vector<int> text;
  const char what = question.get<char>();
  const auto written = question.list<int>();
  if (what == 'c') {
    entry = racer(written, question.get<int>());
    return Message();
  }
  if (what == 'p') text.clear();  // a new prompt
  text.insert(text.end(), written.begin(), written.end());
  const Guesses guesses = grown(entry, text);
  return Message().put(guesses.token).put(guesses.parent);
}

// The pages of this course: the letters of one after 1,000 of its own, where the others are the corpus.
void measure() {
  std::vector<int> corpus;
  const std::vector<int> text = bytes_of("course/chapter6.md");
  for (const char* name : {"1", "2", "4", "5", "10"})
    for (int letter : bytes_of("course/chapter" + std::string(name) + ".md")) corpus.push_back(letter);
  if (text.size() < 1000) throw std::runtime_error("course/chapter6.md is not here");
  const Racer entry = racer(corpus, 256);
  Lap lap;
  const auto grow = [&](const std::vector<int>& written) { return grown(entry, written); };
  const double seconds = fastest(1, [&] { run_lap(text, 1000, grow, lap); });
  printf("The letters of chapter 6's page, where the other pages are the corpus\n\n");
  printf("  %.2f tokens a forward, of %.1f nodes; %.0f us to draft them\n", lap.a_forward(),
         double(lap.nodes) / lap.forwards, seconds / lap.forwards * 1e6);
  printf("  %.0f tokens a second if a forward takes 10 ms and 0.4 ms for each row; plain: %.0f\n", lap.a_second(),
         1000 / (kForward + kRow));
}

}  // namespace course
