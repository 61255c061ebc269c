// study/update.cpp: see update.h.
#include "study/update.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Work

std::vector<UpdateWork> update_work(const Config& c, int sequences) {
  const double T = c.block_size, R = sequences * T, L = c.n_layer, C = c.n_embd, V = c.vocab_size;
  const double A = c.heads_size(), Q = c.qkv_size(), G = c.hidden(), F = c.inner(), H = c.n_head;
  const double P = double(parameter_count(c));
  const double M = L * (C * Q + A * C + C * G + F * C) + V * C;  // numbers in packed matrices
  const double seen = R * A * (T + 1) / 2;                       // multiply-adds of one product of causal attention
  const double halves = sequences > 1 ? 2 : 1;                   // each has a gradient; the second is added
  constexpr auto kForward = UpdateWork::kForward, kBackward = UpdateWork::kBackward, kAnyTime = UpdateWork::kAnyTime;
  std::vector<UpdateWork> work;
  const auto row = [&](const char* name, const std::vector<std::type_index>& types, double numbers,
                       double multiply_adds = 0, UpdateWork::When when = UpdateWork::kAnyTime) {
    work.push_back({name, 2 * multiply_adds, 4 * numbers, when, types});
  };
  const auto product = [&](const std::string& name, UpdateWork::When when, const std::type_info& type, double layers,
                           double in, double out) {
    const double numbers = layers * (R * in + in * out + R * out);
    work.push_back({name, 2 * layers * R * in * out, 4 * numbers, when, {type}, int(in), int(out)});
  };
  const auto forward = [&](const char* name, double layers, double in, double out) {
    product(name, kForward, typeid(Matmul<float, float>), layers, in, out);
  };
  // in, out: of the weight's product; the input's has `out` inputs, or those of a matrix that is stored the other way.
  const auto backward = [&](const std::string& name, double layers, double in, double out, bool turned = false) {
    product(name + ": weight", kAnyTime, typeid(MatmulGradient<float>), layers, in, out);
    product(name + ": input", kBackward, typeid(Matmul<float, float>), layers, turned ? in : out, turned ? out : in);
  };
  row("embedding", {typeid(Embed<float>)}, R * C + (V + T) * C);
  row("norms", {typeid(Norm<float>)}, (2 * L + 1) * 2 * R * C, 0, kForward);
  forward("qkv", L, C, Q);
  row("attention", {typeid(Attention<float>)}, L * (R * Q + R * A + R * H), L * 2 * seen);
  forward("proj", L, A, C);
  forward("fc", L, C, G);
  row("GELU", {typeid(BiasGelu<float>)}, L * (R * G + R * F));
  forward("fc_proj", L, F, C);
  row("residual joins", {typeid(JoinResidual<float>)}, 2 * L * 2 * R * C);
  forward("head", 1, C, V);
  row("loss", {typeid(CrossEntropy<float>), typeid(SumRow<Mean<float>>)}, R * V);
  backward("head", 1, V, C, true);
  row("norms again", {typeid(Norm<float>)}, 2 * L * 2 * R * C, 0, kBackward);
  backward("fc_proj", L, F, C);
  row("GELU backward", {typeid(GeluBackward<float>)}, L * 2 * (R * G + R * F));
  backward("fc", L, C, G);
  backward("proj", L, A, C);
  // qkv, outputs and their gradients; of products: the scores again, and four gradients.
  row("attention backward", {typeid(AttentionBackward<float>)}, L * (2 * R * Q + 2 * R * A + R * H), L * 5 * seen);
  backward("qkv", L, C, Q);
  row("norms backward", {typeid(NormBackward<float>)}, (2 * L + 1) * 3 * R * C);
  row("norm weights", {typeid(Strips<NormWeights<float>>)}, (2 * L + 1) * 2 * R * C);
  row("embedding backward", {typeid(Strips<EmbedBackward<float>>)}, R * C + (V + T) * C);
  row("waiting for a half", {typeid(Waiting)}, 0);
  row("zeroing, adding halves", {typeid(Zeros), typeid(Add<float>)}, halves * P + R * C + (halves - 1) * 3 * P);
  // The gradient first; then it, weights and two moments: five times all parameters.
  row("clipping, AdamW", {typeid(SumSquares<float>), typeid(SumRow<ClipFactor<float>>), typeid(AdamW<float>)}, 5 * P);
  row("packing", {typeid(Pack<float, float>)}, 3 * M);  // weights, two packed forms
  row("other", {}, 0);
  return work;
}

double update_bytes(const Config& c, int sequences) {
  const double R = double(sequences) * c.block_size, C = c.n_embd;
  const double saved =
      c.n_layer * (2 * C + c.qkv_size() + 2.0 * c.n_kv_head * c.head_size() + c.heads_size() + c.hidden());
  return 4 * (7 * double(parameter_count(c)) + R * saved);
}

// ---------------------------------------------------------------------------------------------------------------
// Time

void UpdateClock::begins(const std::type_info& type, const void* operation) {
  // One thread runs the halves of a batch one after the other.
  if (type == typeid(Embed<float>)) after_loss_ = false;
  if (type == typeid(CrossEntropy<float>)) after_loss_ = true;
  std::pair<int, int> sizes;  // of a product: inputs, outputs
  if (const auto* product = static_cast<const Matmul<float, float>*>(operation); type == typeid(Matmul<float, float>))
    sizes = {product->w.k, product->w.n};
  if (const auto* product = static_cast<const MatmulGradient<float>*>(operation); type == typeid(MatmulGradient<float>))
    sizes = {product->inputs, product->outputs};
  const auto is_it = [&](const UpdateWork& work) {
    return std::count(work.types.begin(), work.types.end(), std::type_index(type)) > 0 &&
           std::pair(work.inputs, work.outputs) == sizes &&
           (work.when == UpdateWork::kAnyTime || (work.when == UpdateWork::kBackward) == after_loss_);
  };
  const auto found = std::find_if(work_.begin(), work_.end(), is_it);
  const size_t next = std::min(size_t(found - work_.begin()), work_.size() - 1);
  begun[next]++;
  turn_to(next);
}

double UpdateTimes::sum(size_t update) const {
  double all = 0;
  for (const std::vector<double>& one : seconds) all += one[update];
  return all;
}
size_t UpdateTimes::fastest() const {
  size_t best = 0;
  for (size_t i = 1; i < whole.size(); i++)
    if (sum(i) < sum(best)) best = i;
  return best;
}

}  // namespace nanospec
