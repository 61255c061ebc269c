// machine/tuning.h: what is found out about a machine when a model is loaded.
#pragma once

#include <algorithm>
#include <chrono>

namespace nanospec {

// A small model may run faster on one thread, which waits for nobody: up to how many rows, at most `most`.
// forward(rows, on_one): runs one. These also bring the weights into the caches and wake the threads.
template <class Forward>
int rows_for_one_thread(int threads, int most, Forward forward) {
  constexpr int kRounds = 9;
  constexpr double kLeastSeconds = 0.004;  // longer than most pauses of one core
  int best = 0;
  for (int rows : {1, 2, 4, 8, 16, 32}) {
    if (rows > most) return best;
    double fastest[2] = {1e9, 1e9};  // by the team, by one thread
    for (int on_one : {0, 1, 0}) {   // not by turns: threads that wait too long sleep
      double spent = 0;
      for (int round = 0; round < kRounds || spent < kLeastSeconds; round++) {
        const auto start = std::chrono::steady_clock::now();
        forward(rows, on_one == 1);
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        fastest[on_one] = std::min(fastest[on_one], taken.count()), spent += taken.count();
        if (threads == 1) return 0;
        if (on_one && round > 0 && fastest[1] > 2 * fastest[0]) break;  // it is settled
      }
    }
    best = fastest[1] < fastest[0] ? rows : rows / 2;
    if (best < rows) return best;
  }
  return best;
}

}  // namespace nanospec
