// course/chapter11.cpp: the student's attention of 16 rows on the emulated GPU, for the grader and for a table.
#include <cstdio>
#include <optional>

#include "course/launch.h"

using namespace nanospec;

namespace course {
namespace {

const auto kRowByRow = [](const auto& s) { attention_plain(s); };                       // chapter 10's kernel
const auto kByRows = [](const auto& s) { attention_by_rows(s, most_rows(s.forest)); };  // this chapter's

}  // namespace

// The chapter's kernel (10 or 11), order, the launch -> out, counts.
Message answer(Message& question) {
  const int chapter = question.get<int>(), order = question.get<int>();
  Launch launch(question);
  const Counted counted = chapter == 10 ? launch.run(order, kRowByRow) : launch.run(order, kByRows);
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
      before = launch.run(0, kRowByRow);
    } catch (const std::exception&) {}  // chapter 10 is not written
    const Counted c = launch.run(0, kByRows);
    if (before) printf("%7d %15.1f", rows, double(before->reads) / rows);
    else printf("%7d %15s", rows, "not written");
    printf(" %17.1f %25.1f %17.1f\n", double(c.reads) / rows, double(c.meetings + c.barriers) / rows,
           double(c.conflicts) / rows);
  }
}

}  // namespace course
