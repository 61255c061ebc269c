#include "study/update.h"

#include <algorithm>

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Work

std::vector<UpdateWork> update_work(const Config& c, int sequences) {
  const double T = c.block_size, R = sequences * T, L = c.n_layer, C = c.n_embd, V = c.vocab_size;
  const double A = c.heads_size(), Q = c.qkv_size(), G = c.hidden(), F = c.inner(), H = c.n_head;
  const double P = double(parameter_count(c));
  const double M = L * (C * Q + A * C + C * G + F * C) + V * C;  // numbers in packed matrices
  const double seen = R * A * (T + 1) / 2;                       // multiply-adds of one product of causal attention
  std::vector<UpdateWork> work(kUpdateOperations);
  const auto set = [&](UpdateOperation operation, const char* name, double multiply_adds, double numbers) {
    work[operation] = {name, 2 * multiply_adds, 4 * numbers};
  };
  const auto product = [&](UpdateOperation operation, const char* name, double times, double in, double out,
                           double more = 0) {
    set(operation, name, times * R * in * out, times * (R * in + in * out + R * out + more));
  };
  set(kUpEmbedding, "embedding", 0, R * C + (V + T) * C);
  set(kUpNorms, "norms", 0, (2 * L + 1) * 2 * R * C);
  product(kUpQkv, "qkv", L, C, Q);
  set(kUpAttention, "attention", L * 2 * seen, L * (R * Q + R * A + R * H));
  product(kUpProj, "proj", L, A, C);
  product(kUpFc, "fc", L, C, G);
  set(kUpGelu, "GELU", 0, L * (R * G + R * F));
  product(kUpFcProj, "fc_proj", L, F, C);
  set(kUpJoins, "residual joins", 0, 2 * L * 2 * R * C);
  product(kUpHead, "head", 1, C, V);
  set(kUpLoss, "loss", 0, R * V);
  product(kUpHeadWeight, "head: weight", 1, C, V);
  product(kUpHeadInput, "head: input", 1, V, C);
  set(kUpNormsAgain, "norms again", 0, 2 * L * 2 * R * C);
  product(kUpFcProjWeight, "fc_proj: weight", L, F, C);
  product(kUpFcProjInput, "fc_proj: input", L, C, F);
  set(kUpGeluBackward, "GELU backward", 0, L * 2 * (R * G + R * F));
  product(kUpFcWeight, "fc: weight", L, C, G);
  product(kUpFcInput, "fc: input", L, G, C);
  product(kUpProjWeight, "proj: weight", L, A, C);
  product(kUpProjInput, "proj: input", L, C, A);
  // qkv, outputs and their gradients; of products: the scores again, and four gradients.
  set(kUpAttentionBackward, "attention backward", L * 5 * seen, L * (2 * R * Q + 2 * R * A + R * H));
  product(kUpQkvWeight, "qkv: weight", L, C, Q);
  product(kUpQkvInput, "qkv: input", L, Q, C);
  set(kUpNormsBackward, "norms backward", 0, (2 * L + 1) * 3 * R * C);
  set(kUpSums, "norm weights", 0, (2 * L + 1) * 2 * R * C);
  set(kUpEmbeddingBackward, "embedding backward", 0, R * C + (V + T) * C);
  set(kUpWaiting, "waiting for a half", 0, 0);
  const double halves = sequences > 1 ? 2 : 1;  // each has a gradient; the second is added
  set(kUpZeros, "zeroing, adding halves", 0, halves * P + R * C + (halves - 1) * 3 * P);
  set(kUpAdamW, "clipping, AdamW", 0, P + 4 * P);  // the gradient first; then it, weights and two moments
  set(kUpPack, "packing", 0, 3 * M);               // weights, two packed forms
  set(kUpOther, "other", 0, 0);
  return work;
}

double update_bytes(const Config& c, int sequences) {
  const double R = double(sequences) * c.block_size, C = c.n_embd;
  const double saved =
      c.n_layer * (2 * C + c.qkv_size() + 2.0 * c.n_kv_head * c.head_size() + c.heads_size() + c.hidden());
  return 4 * (7 * double(parameter_count(c)) + R * saved);
}

UpdateBound update_bound(const UpdateWork& work, double flops_per_second, double bytes_per_second) {
  const double computing = work.flops / flops_per_second, reading = work.bytes / bytes_per_second;
  return {std::max(computing, reading), computing > reading};
}

// ---------------------------------------------------------------------------------------------------------------
// Time

// y = x W forward; after the loss dx = dy W^T.
UpdateOperation UpdateClock::product(int inputs, int outputs) const {
  const Config& c = config_;
  const int C = c.n_embd;
  const struct {
    int in, out;
    UpdateOperation forward, backward;
  } all[] = {{C, c.vocab_size, kUpHead, kUpHeadInput},
             {C, c.qkv_size(), kUpQkv, kUpQkvInput},
             {c.heads_size(), C, kUpProj, kUpProjInput},
             {C, c.hidden(), kUpFc, kUpFcInput},
             {c.inner(), C, kUpFcProj, kUpFcProjInput}};
  for (const auto& one : all) {
    if (!after_loss_ && inputs == one.in && outputs == one.out) return one.forward;
    if (after_loss_ && inputs == one.out && outputs == one.in) return one.backward;
  }
  return kUpOther;
}

UpdateOperation UpdateClock::weight_gradient(int inputs, int outputs) const {
  const Config& c = config_;
  const int C = c.n_embd;
  if (inputs == c.vocab_size && outputs == C) return kUpHeadWeight;  // the head is stored the other way
  if (inputs == C && outputs == c.qkv_size()) return kUpQkvWeight;
  if (inputs == c.heads_size() && outputs == C) return kUpProjWeight;
  if (inputs == C && outputs == c.hidden()) return kUpFcWeight;
  if (inputs == c.inner() && outputs == C) return kUpFcProjWeight;
  return kUpOther;
}

UpdateOperation UpdateClock::place(const std::type_info& type, const void* operation) {
  if (type == typeid(Matmul<float, float>)) {
    const auto& w = static_cast<const Matmul<float, float>*>(operation)->w;
    return product(w.k, w.n);
  }
  if (type == typeid(MatmulGradient<float>)) {
    const auto& s = *static_cast<const MatmulGradient<float>*>(operation);
    return weight_gradient(s.inputs, s.outputs);
  }
  // One thread runs the halves of a batch one after the other.
  if (type == typeid(Embed<float>)) after_loss_ = false;
  if (type == typeid(CrossEntropy<float>)) after_loss_ = true;
  const struct {
    const std::type_info& type;
    UpdateOperation forward, backward;
  } all[] = {{typeid(Embed<float>), kUpEmbedding, kUpOther},
             {typeid(Norm<float>), kUpNorms, kUpNormsAgain},
             {typeid(Attention<float>), kUpAttention, kUpOther},
             {typeid(BiasGelu<float>), kUpGelu, kUpOther},
             {typeid(JoinResidual<float>), kUpJoins, kUpOther},
             {typeid(CrossEntropy<float>), kUpOther, kUpLoss},
             {typeid(SumRow<Mean<float>>), kUpOther, kUpLoss},
             {typeid(GeluBackward<float>), kUpOther, kUpGeluBackward},
             {typeid(AttentionBackward<float>), kUpOther, kUpAttentionBackward},
             {typeid(NormBackward<float>), kUpOther, kUpNormsBackward},
             {typeid(Strips<NormWeights<float>>), kUpOther, kUpSums},
             {typeid(Strips<EmbedBackward<float>>), kUpOther, kUpEmbeddingBackward},
             {typeid(Waiting), kUpOther, kUpWaiting},
             {typeid(Zeros), kUpZeros, kUpZeros},
             {typeid(Add<float>), kUpOther, kUpZeros},
             {typeid(SumSquares<float>), kUpOther, kUpAdamW},
             {typeid(SumRow<ClipFactor<float>>), kUpOther, kUpAdamW},
             {typeid(AdamW<float>), kUpOther, kUpAdamW},
             {typeid(Pack<float, float>), kUpOther, kUpPack}};
  for (const auto& one : all)
    if (type == one.type) return after_loss_ ? one.backward : one.forward;
  return kUpOther;
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
