#!/bin/sh
# machine/single.sh: writes the core as one file to standard output, for `make single`: the headers in reading order, a
# floor of its own under them (machine/single_floor.cuh), and a main. Run it from the project's root.
#
# usage: sh machine/single.sh            with the argument `marks` it keeps the course's marks (course/regions.h)
#
# What the file cannot use is left out by the rules below: what only other rings call, what has a tuned version, and
# words about files that are not in it. A rule that finds nothing is an error, so none is forgotten here.
set -eu

# The commands are typed from the project's root. The text is this file: it is there.
cat <<'HEAD'
// nanospec, the core in one file: g++ -x c++ -std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno build/nanospec_single.cu -o build/single && build/single build/nanospec_single.cu
//                           on a GPU: nvcc -std=c++17 -O3 --fmad=false build/nanospec_single.cu -o build/single && build/single build/nanospec_single.cu
// So it learns from its own text; any other will do. `make single` wrote it out of the project's files, in the order in
// which they are read: how a tree is drafted, verified and decoded; the floor, a plain machine to run on; the model; how
// it is trained; and a main. Each part begins with its name.

HEAD
files="tree.h machine/numbers.h sample.h draft.h decode.h kernels.cuh rows.h model.h target.h gradients.cuh train.h
machine/single.cpp"
grep -hE '^#include <' $files machine/single_floor.cuh | sort -u

# The rules: FILE | FROM | TO | NEW. The line that begins with FROM (after its indentation) is left out, with all lines
# to the next one of the same indentation that begins with TO; without TO just that line. NEW stands in its place.
awk -v marks="${1-}" -v files="$files" '
  function trim(s) { gsub(/^ +| +$/, "", s); return s }
  function begins(line, start) { return substr(line, 1, length(start)) == start }
  function say(line) {  # a ruler, an empty line and an empty comment are held back until something follows them
    if (line ~ /^ *\/\/ -----*$/) {
      if (opened != "") { print "\n" opened; opened = ""; gap = 0 }
      ruler = line
      return
    }
    if (line == "") { gap = 1; return }
    if (line == "//") { bar = 1; return }
    if (line == "#ifdef __CUDACC__" && opened == "") { opened = line; return }
    if (line == "#endif" && opened != "") { opened = ""; return }
    if (bar && line ~ /^\/\//) print "//"
    if (gap || ruler) print ""
    if (ruler && line ~ /^\/\/ /) line = "// ---- " substr(line, 4)  # a title stands in its ruler
    if (opened != "") print opened
    gap = bar = 0; opened = ruler = ""
    print line
  }
  function rule_for(file, line,    i) {
    for (i = 1; i <= rules; i++) if (of[i] == file && !used[i] && begins(line, from[i])) return i
    return 0
  }
  # Writes a part: a whole file, or of the floor what stands below this title. kept[d]: of the d-th #if around a line,
  # whether the line is in the half that stays: 1, 0, or -1 where the compiler decides.
  function paste(path, title,    line, indent, rule, depth, kept, at, on, d) {
    depth = 0; rule = 0; on = title == ""
    while ((getline line < path) > 0) {
      if (begins(line, "// ======== ")) { on = title != "" && line == "// ======== " title; continue }
      if (!on || line ~ /^#include|^#pragma once|^namespace nanospec \{$/) continue
      if (line == "}  // namespace nanospec" && path != "machine/single.cpp") continue
      if (line ~ /^#if/) {
        kept[++depth] = line ~ /INSTANTIATE|TUNED_CUDA/ ? 0 : -1
        if (kept[depth] >= 0) continue
      }
      if (line ~ /^#else/ && kept[depth] >= 0) { kept[depth] = !kept[depth]; continue }
      if (line ~ /^#endif/ && kept[depth--] >= 0) continue
      for (d = 1; d <= depth; d++) if (kept[d] == 0) break
      if (d <= depth) continue
      if (line ~ /^ *\/\/ Budget: /) continue
      if (marks == "" && line ~ /^ *\/\/ (course [0-9.]+|end)$/) continue
      if (marks == "") sub(/  \/\/ course [0-9.]+.*$/, "", line)
      match(line, /^ */); indent = RLENGTH; at = substr(line, indent + 1)
      if (rule) {
        if (indent == from_indent && begins(at, to[rule])) rule = 0
        continue
      }
      if (rule = rule_for(path, at)) {
        used[rule] = 1; from_indent = indent
        lines = split(new[rule], line_of, /\\n/)
        for (d = 1; d <= lines; d++) say(substr(line, 1, indent) line_of[d])
        if (to[rule] == "") rule = 0
        continue
      }
      sub(/WITH_CUDA/, "__CUDACC__", line)
      say(line)
    }
    if (rule) fail(path ": nothing ends what begins with: " from[rule])
    close(path)
  }
  function title() { say("// " double); }
  function fail(why) { print "machine/single.sh: " why > "/dev/stderr"; failed = 1; exit 1 }
  BEGIN { double = sprintf("%111s", ""); single = double; gsub(/ /, "=", double); gsub(/ /, "-", single)
    single = "// " single }
  /^#|^ *$/ { next }
  { split($0, field, / *\| */); rules++; of[rules] = trim(field[1]); from[rules] = trim(field[2])
    to[rules] = trim(field[3]); new[rules] = trim(field[4]) }
  END {
    if (failed) exit 1
    n = split(files, list, /[ \n]+/)
    say(""); say("namespace nanospec {")
    for (i = 1; i <= n; i++) {
      say("")
      title()
      if (list[i] == "kernels.cuh") { paste("machine/single_floor.cuh", "before kernels.cuh"); say(""); title() }
      paste(list[i], "")
      say("")
      if (list[i] ~ /^(kernels.cuh|model.h|gradients.cuh)$/) say(single)
      if (list[i] ~ /^(kernels.cuh|model.h|gradients.cuh)$/) paste("machine/single_floor.cuh", "after " list[i])
    }
    for (i = 1; i <= rules; i++) if (!used[i]) fail(of[i] ": no line begins with: " from[i])
  }' <<'RULES'
tree.h | // Here and in other files a student of course/ | |
tree.h | // Lays the growth out in preorder, as a depth-first | } |
tree.h | // The same, for trees of any size. | | // Lays the growth out in preorder: children in the order of their addition.
tree.h | // How many nodes a tree has, the root not counted | } |
tree.h | inline int64_t full_tree_nodes( | } |

machine/numbers.h | // machine/numbers.h: | | // numbers.h: the functions of which every operation is made, for CPU and GPU.
machine/numbers.h | // There is a GPU to compile for: | #endif |
machine/numbers.h | // On a GPU the loop is unrolled by kSteps | #endif |
machine/numbers.h | // bfloat16: the upper half of a float. | }; |
machine/numbers.h | HD inline float to_float(bf16 | |
machine/numbers.h | HD inline bf16 to_bf16( | } |
machine/numbers.h | if constexpr (std::is_same<W, bf16> | |
machine/numbers.h | else return W(x); | | return W(x);
machine/numbers.h | // How many steps of a sum over k lie | | // How many steps of a sum over k lie side by side in memory.
machine/numbers.h | constexpr int kTogether = | | constexpr int kTogether = 1;
machine/numbers.h | HD_INLINE double erf_terms( | } |
machine/numbers.h | // The float that half precision | } |
machine/numbers.h | // Half precision as weights | }; |
machine/numbers.h | HD inline float to_float(f16 | |
machine/numbers.h | HD inline f16 to_f16( | } |
machine/numbers.h | else if constexpr (std::is_same<W, f16> | |
machine/numbers.h | // The outputs of a panel of weights | #endif |
machine/numbers.h | // Each function is one formula for both types, and exp for | | // Each function is one formula for both types. The types differ in the
machine/numbers.h | // exact result. The errors were measured on | | // exact result. The errors were measured on every seventh float and 2 * 10^7 doubles.
machine/numbers.h | // checks bounds just above them. | |

sample.h | // A token that the text already contains | float repetition_penalty |
sample.h | bool penalizes() | |
sample.h | // A uniform number in (0, 1), for rules | } |
sample.h | // p: (V) the distribution that `pick` samples | } |
sample.h | inline void distribution( | } |
sample.h | // Draws token x with chance | } |

draft.h | // Nodes of a growing tree that its drafter | }; |
draft.h | // Texts side by side: the same for drafters | virtual bool prepare_all( |
draft.h | // functions; the bigram drafter. All other | | // functions; the bigram drafter.
draft.h | // Called before begin(), with what can be read | virtual void attach( |
draft.h | // The same drafter for another text, which has | virtual std::unique_ptr<Drafter> another(
draft.h | std::unique_ptr<Drafter> another( | |
draft.h | // The name, for the statistics, of the drafter | virtual const std::string& author( |
draft.h | // How to add a drafter: | //   3. |

decode.h | // forwards; the planner and the runner of the core; | // forest/. | // forwards; the planner and the runner; the loop. It reads no clock and no command line, and knows no model.
decode.h | // One that grows each tree for itself, from | | // One that grows each tree for itself, no node deeper than `room`.
decode.h | virtual bool opened( | |
decode.h | virtual void close( | |
decode.h | if (!text.wanted()) return runner.close | | if (!text.wanted()) return;
decode.h | if (!text->wanted()) {  // no token was | } |
decode.h | if (!runner.opened(*text)) continue; | |
decode.h | // (V) what the token after a node of | virtual const float* logits_after |
decode.h | // The token that the target picks there. | | // The token that the target picks after a node of the tree that was run.
decode.h | return pick(logits_after( | | return pick(target.logits(node), row, vocab_size, sampling);
decode.h | if (text.empty()) throw | | if (text.empty()) throw std::runtime_error("the prompt is empty");
decode.h | std::to_string(vocab) + | | std::to_string(vocab));

kernels.cuh | // lanes (machine/numbers.h) does to one row; a group | // Shapes: rows R | // lanes does to one row; a group is a core of a CPU, or a warp of a GPU. The same code serves both. At the end three\n// operations are also written as CUDA kernels. The file knows nothing of threads, models or files.\n//\n// Shapes: rows R (all tokens of a forward), channels C, heads H, head size D, vocabulary V. Matrices that a matmul
kernels.cuh | constexpr int kStrip = | | constexpr int kStrip = 4 * kLanes;
kernels.cuh | const T *wte, *wpe; | | const T *wte, *wpe;  // (V, C), (block, C)
kernels.cuh | // A weight (K inputs, N outputs), as panels. | }; |
kernels.cuh | // In bf16 two steps of the sum that reads them | // These are the bytes |
kernels.cuh | // out (R, N) = x (R, K) W: one serial sum | // (cuda/matmul.cuh | // out (R, N) = x (R, K) W: one serial sum over k for each output. A call computes columns begin .. end - 1 of all rows:
kernels.cuh | // An earlier forward has computed the first so many | // their keys and values stays | // The first so many rows of each root are left out: an earlier forward has computed them.
kernels.cuh | bool in_cache = false; | bool cache_is_read = true; |
kernels.cuh | // So many positions, from the first on, lie | HD int unseen_at | HD int unseen(int /*row*/) const { return 0; }  // it sees all of its past
kernels.cuh | // Tree attention. On a GPU its tuned | | // Tree attention
kernels.cuh | // The first CUDA kernels: tree attention | // Each has the bits | // The first CUDA kernels: tree attention, the gather, the matmul. Each has the bits of the operation above.
machine/numbers.h | // Its approximation by tanh | }; |
machine/numbers.h | // SiLU(x) = x / (1 + exp(-x)) | }; |
kernels.cuh | // The norm of each head | }; |
kernels.cuh | bool by_tanh = false; | |
kernels.cuh | if (by_tanh) g.map( | |
kernels.cuh | else g.map(y, | | g.map(y, end - begin, [=](int c) { return Gelu::of(x[c]); });
kernels.cuh | // act = SiLU(gate) up (Shazeer | }; |
kernels.cuh | // Rotary positions (Su et al. | }; |

rows.h | // How many of its rows, all of one root | // For networks without |
rows.h | // A batch whose arrays are somebody else's | DeviceBatch(const int* tokens, |

model.h | // model.h: one transformer: | | // model.h: the transformer: GPT as nanoGPT defines it.
model.h | // What Llama (Touvron et al. | | // What other models do otherwise. 0 stands for GPT's size.
model.h | bool tanh = false; | |
model.h | bool rotary = false; | bool swiglu = false; |
model.h | bool qkv_bias = false; | int span = 0; |
model.h | bool cache_is_read = true; | |
model.h | .computed = batch.computed, | .span = a.config.span | .computed = batch.computed};
model.h | float norm_epsilon = 1e-5f, rope_theta | std::vector<float> rope_factors | float norm_epsilon = 1e-5f;
model.h | *fc_proj, *fc_proj_bias; | |
model.h | T *ln_1, *ln_1_bias, *qkv, | | T *ln_1, *ln_1_bias, *qkv, *qkv_bias, *proj, *proj_bias, *ln_2, *ln_2_bias, *fc, *fc_bias, *fc_proj, *fc_proj_bias;
model.h | bool biased = false) { | |
model.h | const auto linear = | | const auto linear = [&](const std::string& name, int in, int out, float init_std, T*& weight, T*& bias) {
model.h | if (biased | | if (config.bias) f(name + ".bias", {out}, 0.0f, bias);
model.h | linear(block + "attn.c_attn", | | linear(block + "attn.c_attn", C, config.qkv_size(), std, layer.qkv, layer.qkv_bias);
model.h | if (config.qk_norm) f(block + "attn.q_norm | |
model.h | if (config.qk_norm) f(block + "attn.k_norm | |
model.h | // (L, R, Q) queries and keys before their norms | Rows<T> raw = |
model.h | // The norms of each head | } |
model.h | Attention<T, S> attention_of(const Team& team, | | Attention<T, S> attention_of(const Team&, const DeviceBatch& batch, const Activations<T, S>& a, int l,
model.h | heads.in_cache = !a.config.qk_norm | |
model.h | if (c.qk_norm) { | } |
model.h | int hidden() const { | | int hidden() const { return inner(); }                                   // what the MLP's first matrix gives
model.h | if (!config.rotary) f( | | f("wpe.weight", {config.block_size, C}, std, wpe);
model.h | // (positions, D / 2, 2) the cosine and sine | } |
model.h | Array<T> rope; | |
model.h | // Points all weights at the tensors, and makes | // their use, which | // Points all weights at the tensors. Returns them in the order of their use.
model.h | std::vector<Weight<T, W>*> list(const Config& c, | | std::vector<Weight<T, W>*> list(const Config& c, bool) {
model.h | if (c.rotary) { | } |
model.h | // Queries and keys of the block's rows turn | } |
model.h | Rows<T> pre = per_layer(G); | | Rows<T> pre = per_layer(G);                    // (L, R, F) before the GELU
model.h | // act (R, F) = GELU(pre) or SwiGLU(pre), | | // act (R, F) = GELU(pre), with pre (R, hidden) = x W + b.
model.h | void activate(const RowBlock& b, const Config& c, | | void activate(const RowBlock& b, const Config&, const Normalized<T>& x, const Weight<T, W>& fc, View<T> pre,
model.h | if (!c.swiglu) { | launch_columns( | matmul(b.team, b.rows, product(x, fc.forward, pre), BiasGelu<T>{pre.at, act.at, pre.stride, fc.bias});\nb.team.wait();
model.h | // qkv (R, Q) = norm_1(x) W + b, queries | | // qkv (R, Q) = norm_1(x) W + b
model.h | if (c.rotary) turn( | |
model.h | // act (R, F) = GELU(norm_2(mid) W + b), or | | // act (R, F) = GELU(norm_2(mid) W + b)
model.h | // The table of a model's tensors. A model's sizes | | // The table of a model's tensors.
model.h | // Weights as the forward reads them: | | // Weights as the forward reads them: panels
model.h | // flat: the parameters, in the device | // transposes, which | // flat: the parameters, in the device's memory; each pack() reads them again. training: with the transposes too.
model.h | Array<W> memory; | | Array<W> memory;    // all panels
model.h | if (kTuned && cuda | |
model.h | for (Weight<T, W>* weight : all) weight->use_stored(); | |
model.h | else memory = place_weights( | | memory = place_weights(all, training, cuda);
model.h | size_t bytes() const { | } |
model.h | Panels<W> symbols; | |
model.h | if (w.symbols.data) unpack( | |
model.h | Rows<T> attention_scratch = | | Rows<T> attention_scratch = once(R, size_t(H) * slots);
model.h | // Compiled once | |

target.h | Target(const Config& config, const TensorSource& weights, Dtype dtype, bool cuda | Target(const Target&) | Target(const Target&) = delete;
target.h | // The same on another target's threads: | |
target.h | // most_rows: the rows of the largest tree | // fp32 or bf16. Throws |
target.h | // It has what decode.h asks of a target, and what | // whole iterations of a text | // It has what decode.h asks of a target.
target.h | // The seat of which the functions below | void sit( |
target.h | // As many of n tokens as the cache begins | } |
target.h | // Caches n tokens at positions | int prefill( | // Caches n tokens at positions 0 .. n - 1, and forgets all others.\nvoid prefill(const int* tokens, int n) {
target.h | reuse(tokens, n); | | seat_->past = 0;
target.h | const int first = past(); | |
target.h | seat_->cached.assign( | |
target.h | return n - first; | |
target.h | clear_rows(); | | rows_.clear();
target.h | add_tree(token, depth, end, n); | | rows_.add_tree(token, depth, end, n, first_slot(), past());
target.h | whole_ = layers == 0; | |
target.h | const bool alone = | |
target.h | for (int i = 0; whole_ && | seat_->past += n; | seat_->past += n;
target.h | std::vector<int> cached; | |
target.h | bool whole_ = true; | |
target.h | // The next forward writes behind the | } |
target.h | // The same for the trees of several | } |
target.h | Target(const Config& config, const TensorSource& weights, Dtype dtype, std::shared_ptr | | // most_rows: the rows of the largest tree, its root among them.\nTarget(const Config& config, const TensorSource& weights, Dtype dtype, std::shared_ptr<Pool> pool, int most_rows,
target.h | Dtype cache_dtype = Dtype::fp32, int seats = 1) | | int seats = 1)
target.h | if (cache_dtype == Dtype::fp32) | else activations_ = | activations_ = Activations<float>(config, most_rows_, slots, false, pool_->size(), cuda);
target.h | for (auto* cache : {&a.k, &a.v}) | |
target.h | if (seats > 1 && !cuda) | |
target.h | x_ = &a.x; | norm_ = &a.norm_f; |
target.h | layers_run_ = 0; | |
target.h | layers_run_ = with_logits | |
target.h | std::variant<Activations<float, float>, | | std::variant<Activations<float>> activations_;
target.h | const Rows<float>*x_ = nullptr, | | const Rows<float>* device_logits_ = nullptr;  // of the activations
target.h | const float* host_logits_ = nullptr; | | const float* host_logits_ = nullptr;          // of the last forward
target.h | int V_ = 0, layers_run_ = 0; | | int V_ = 0;                   // the row stride of the logits
target.h | if (cuda) prepare_iterations(); | |
target.h | const std::vector<int> token(size_t(most_rows_), 0); | if (!cuda) team_.measure( |
target.h | int layers() const | int threads() const |
target.h | const std::shared_ptr<Pool>& pool() const | |
target.h | const auto& activations() const | |
target.h | const Config& config() const | const Weights<float, AnyNumber>& weights() const |
target.h | size_t weight_bytes() const | |
target.h | // Bytes of keys and values that a row reads | } |
target.h | if (cuda()) wait_for_iterations(); | |
target.h | // After this, a prefill runs all of its | } |
target.h | host_logits_ = cuda() && alone | | host_logits_ = forward_here(with_logits, layers);
target.h | // (C) of a row of the last forward: | const float* hidden( |
target.h | // Sets how many positions count as cached. | void rewind( |
target.h | // Calls f(team) on the threads that a forward | |
target.h | void on_threads(int rows, | | void on_threads(int /*rows*/, F&& f) const {
target.h | pool_->run(f, | | pool_->run(f);
target.h | const auto start = std::chrono::steady_clock::now(); | |
target.h | team_.took( | |
target.h | void prepare_iterations() {} | |
target.h | void wait_for_iterations() const {} | |
target.h | const float* forward_on_gpu(int n, int layers) { return | |
target.h | TeamChoice team_; | |

machine/single.cpp | // machine/single.cpp: the main() | // usage: | // The main: it trains a small model on a text, decodes plain and by trees, and compares the two generated texts.\n//\n// usage: build/single TEXT [UPDATES]        TEXT: any file; a token is a byte of it

gradients.cuh | // The gradient through HeadNorm | }; |
gradients.cuh | bool by_tanh = false; | |
gradients.cuh | if (by_tanh) | |
gradients.cuh | g.map(store, end - begin, [=](int c) { return Both{y[c] * TanhGelu | |
gradients.cuh | else g.map(store, | | g.map(store, end - begin, [=](int c) { return Both{y[c] * Gelu::slope(x[c]), Gelu::of(x[c])}; });
gradients.cuh | // From gate_up and the gradient of act | }; |

train.h | void activate_backward(const RowBlock& b, const Config& c, | | void activate_backward(const RowBlock& b, const Config&, View<T> dy, const Weight<T, W>& w, View<T> pre,
train.h | if (!c.swiglu) { | launch(b.team | matmul(b.team, b.rows, through, GeluBackward<T>{pre.at, act.at, act.stride});\nb.team.wait();
train.h | // Queries and keys, of all rows, turn back | } |
train.h | if (c.qk_norm) head_norms_backward( | |
train.h | if (c.rotary && !c.qk_norm) turn( | |
train.h | activations.cache_is_read = false; | |
train.h | static constexpr bool portable = | |
train.h | Rows<T> p = a.once( | | Rows<T> p = a.once(a.R, size_t(a.H) * a.slots);
train.h | Rows<T> ds = a.once( | | Rows<T> ds = a.once(a.R, size_t(a.H) * a.slots);
train.h | // The mean cross-entropy of batch.target | } |
train.h | // The same, and sets `gradient`: of the loss | } |
train.h | // One AdamW update with `gradient` as it is | } |
train.h | // Compiled once | |
RULES
