// course/chapter11.cpp: the student's attention of 16 rows on the emulated GPU, for the grader and for a table.
#include <cstdio>
#include <optional>

#include "course/launch.h"

using namespace nanospec;

namespace course {
namespace {

// This chapter's kernel.
void by_rows(const Attention<float>& s) {
  int most = 0;  // rows of a root
  for (int root = 0; root < s.forest.roots; root++)
    most = std::max(most, s.forest.first_row[root + 1] - s.forest.first_row[root]);
  attention_by_rows(s, most);
}

}  // namespace

// The chapter's kernel (10 or 11), order, the launch -> out, counts.
Message answer(Message& question) {
  const int chapter = question.get<int>(), order = question.get<int>();
  Launch launch(question);
  const Counted counted = launch.run(order, chapter == 10 ? attention_plain<float> : by_rows);
  return Message().put(launch.result()).put(counted);
}

// A root and two chains, behind a past of 256 keys.
void measure() {
  constexpr int D = 64, past = 256;
  printf("One query head of 64, a root and two chains behind a past of %d keys; for each row\n\n", past);
  printf("                  sectors read                       this chapter's\n");
  printf("   rows    chapter 10's    this chapter's    barriers, shuffles ...    bank conflicts\n");
  for (int rows : {1, 3, 5, 9, 16, 17, 33, 64}) {
    Launch launch = two_chains(rows, D, past);
    std::optional<Counted> before;
    try {
      before = launch.run(0, attention_plain<float>);
    } catch (const std::exception&) {}  // chapter 10 is not written
    const Counted c = launch.run(0, by_rows);
    if (before) printf("%7d %15.1f", rows, double(before->reads) / rows);
    else printf("%7d %15s", rows, "not written");
    printf(" %17.1f %25.1f %17.1f\n", double(c.reads) / rows, double(c.meetings + c.barriers) / rows,
           double(c.conflicts) / rows);
  }
}

}  // namespace course
