// course/checks13.cpp: the grader's checks of the race: are trees trees, and how many tokens a second do they give?
#include "course/judge.h"
#include "course/lap.h"

namespace course {
namespace {

constexpr int kVocab = 27;  // a blank between words, and letters

// A language made up, so that nobody knows its words beforehand. Each word is mostly followed by one of four.
struct Language {
  std::vector<std::vector<int>> words;
  std::vector<std::vector<int>> next;  // of each word

  explicit Language(Examiner& judge) {
    for (int i = 0; i < 300; i++) {
      words.push_back(word(judge));
      next.push_back({often(judge), often(judge), often(judge), often(judge)});
    }
  }
  // Some syllables.
  static std::vector<int> word(Examiner& judge) {
    std::vector<int> letters;
    for (int syllables = judge.between(1, 3); syllables > 0; syllables--) {
      letters.push_back(6 + judge.below(21));
      letters.push_back(1 + judge.below(5));
    }
    return letters;
  }
  // A word's number, the first ones more often.
  int often(Examiner& judge) const { return int(300 * judge.unit() * judge.unit() * judge.unit()); }

  // A text of so many tokens. It has three words of its own, which come again and again.
  std::vector<int> write(Examiner& judge, size_t tokens) const {
    const std::vector<std::vector<int>> own = {word(judge), word(judge), word(judge)};
    std::vector<int> text;
    for (int at = 0; text.size() < tokens;) {
      const bool its_own = judge.below(8) == 0;
      at = judge.below(4) > 0 ? next[at][judge.below(judge.between(1, 4))] : often(judge);
      const std::vector<int>& letters = its_own ? own[judge.below(3)] : words[at];
      text.insert(text.end(), letters.begin(), letters.end());
      text.push_back(0);
    }
    text.resize(tokens);
    return text;
  }
};

Guesses ask(Examiner& judge, char what, const std::vector<int>& written) {
  Message answer = judge.student.ask(Message().put(what).put(written));
  const Guesses guesses{answer.list<int>(), answer.list<int>()};
  const auto wrong = [&](int node, const std::string& what_is) {
    not_passed("tree with parents ", guesses.parent, ", tokens ", guesses.token, ": node ", node, what_is);
  };
  const int n = int(guesses.token.size());
  if (n == 0 || guesses.parent.size() != guesses.token.size() || guesses.parent[0] != -1)
    not_passed("a tree without its root");
  if (guesses.token[0] != written.back()) wrong(0, " is not the text's last token any more");
  if (n > kMostNodes + 1) not_passed(n - 1, " guesses below the root: at most ", kMostNodes);
  for (int node = 1; node < n; node++) {
    if (guesses.token[node] < 0 || guesses.token[node] >= kVocab) wrong(node, ": no such token");
    const int above = guesses.parent[node];
    if (above < 0 || above >= node) wrong(node, ": its parent does not come before it");
  }
  return guesses;
}

// Several texts, each a lap. A prompt is 40 tokens.
Lap laps(Examiner& judge, int texts, size_t tokens) {
  const Language language(judge);
  judge.student.ask(Message().put('c').put(language.write(judge, 40000)).put(kVocab));
  Lap lap;
  for (int i = 0; i < texts; i++) {
    size_t sent = 0;
    const std::vector<int> text = language.write(judge, tokens);
    const auto grow = [&](const std::vector<int>& written) {
      const std::vector<int> more(written.begin() + long(sent), written.end());
      const char what = sent == 0 ? 'p' : 't';
      sent = written.size();
      return ask(judge, what, more);
    };
    run_lap(text, 40, grow, lap);
  }
  return lap;
}

void race(Examiner& judge, double times_plain) {
  const Lap lap = laps(judge, 4, 400);
  const std::string said =
      line_of(text_of(lap.a_second(), "%.1f"), " tokens a second, ", text_of(lap.a_forward(), "%.3f"),
              " tokens a forward, trees of ", text_of(double(lap.nodes) / lap.forwards, "%.2f"), " nodes");
  const double wanted = times_plain * 1000 / (kForward + kRow);
  if (lap.a_second() < wanted) not_passed(said, "; this check wants ", int(wanted + 0.5));
  if (times_plain > 1.1) judge.note = said;
}

}  // namespace

Chapter chapter13() {
  return {13,
          "the race",
          {{"every tree is a tree", 4, [](Examiner& judge) { laps(judge, 2, 200); }},
           {"faster than plain decoding", 3, [](Examiner& judge) { race(judge, 1.0001); }},
           {"the race: half as fast again as plain decoding", 3, [](Examiner& judge) { race(judge, 1.5); }}}};
}

}  // namespace course
