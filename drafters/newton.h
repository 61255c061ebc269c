// drafters/newton.h: learns a few weights online, by one Newton step for each new observation:
//   weights += curvature^-1 gradient
// The gradient is that of the new observation. The curvature is the sum over all observations, with older ones weighing
// less. It serves the weights of a union (adapt.h) and the correction of chances (growth/trust.h).
#pragma once

#include "machine/numbers.h"

namespace nanospec {

template <int kMost>
class Newton {
 public:
  // prior: the curvature of each weight before the first observation.
  Newton(int n, double prior) : n_(n), prior_(prior) {
    for (int i = 0; i < n; i++) curvature_[i][i] = prior;
  }
  // The curvature of weights i and j, j <= i.
  double& curvature(int i, int j) { return curvature_[i][j]; }

  // Moves the weights (n) by curvature^-1 gradient, by Cholesky; each by `most` at most.
  void move(const double* gradient, double most, double* weights) const {
    double l[kMost][kMost], step[kMost];
    for (int i = 0; i < n_; i++) {
      for (int j = 0; j <= i; j++) {
        double sum = curvature_[i][j];
        for (int c = 0; c < j; c++) sum -= l[i][c] * l[j][c];
        l[i][j] = i == j ? square_root(larger(sum, 1e-9)) : sum / l[j][j];
      }
      step[i] = gradient[i];
      for (int c = 0; c < i; c++) step[i] -= l[i][c] * step[c];
      step[i] /= l[i][i];
    }
    for (int i = n_ - 1; i >= 0; i--) {
      for (int c = i + 1; c < n_; c++) step[i] -= l[c][i] * step[c];
      step[i] /= l[i][i];
      weights[i] += larger(-most, smaller(most, step[i]));
    }
  }
  // Forgets this share of the curvature: the prior takes its place.
  void forget(double share) {
    for (int i = 0; i < n_; i++)
      for (int j = 0; j <= i; j++) curvature_[i][j] += share * ((i == j ? prior_ : 0) - curvature_[i][j]);
  }

 private:
  int n_;
  double prior_;
  double curvature_[kMost][kMost] = {};  // lower half
};

}  // namespace nanospec
