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
# to the next one of the same indentation that begins with TO, or before it if TO is < and its beginning; without TO just
# that line. NEW stands in its place.
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
    if (line == "//") { blank = 1; return }
    if (line == "#ifdef __CUDACC__" && opened == "") { opened = line; return }
    if (line == "#endif" && opened != "") { opened = ""; return }
    if (blank && line ~ /^\/\//) print "//"
    if (gap || ruler) print ""
    if (ruler && line ~ /^\/\/ /) line = "// ---- " substr(line, 4)  # a title stands in its ruler
    if (opened != "") print opened
    gap = blank = 0; opened = ruler = ""
    print line
  }
  function rule_for(file, line,    i) {
    for (i = 1; i <= rules; i++) if (of[i] == file && !used[i] && begins(line, from[i])) return i
    return 0
  }
  # Writes a part: a whole file, or what stands below this title of it, to the next one; of the floor with the parts of
  # other files that it names. kept[d]: of the d-th #if around a line, whether the line is in the half that stays: 1, 0,
  # or -1 where the compiler decides.
  function paste(path, title,    line, indent, rule, depth, kept, at, on, d, part, block) {
    depth = 0; rule = 0; on = title == ""
    while ((getline line < path) > 0) {
      if (title != "" && line ~ /^\/\/ (-----|=====)/) { on = line == "// ======== " title; continue }
      if (line == "// " title) { on = 1; continue }
      if (on && begins(line, "// ++++++++ ")) {
        split(substr(line, 13), part, ": ")
        paste(part[1], part[2])
        continue
      }
      if (!on || line ~ /^#include|^#pragma once|^namespace nanospec \{$/) continue
      if (line == "}  // namespace nanospec" && path != "machine/single.cpp") { on = 0; continue }
      if (line ~ /^#if/) {
        kept[++depth] = line ~ /INSTANTIATE|TUNED_CUDA/ ? 0 : -1
        if (kept[depth] >= 0) continue
      }
      if (line ~ /^#else/ && kept[depth] >= 0) { kept[depth] = !kept[depth]; continue }
      if (line ~ /^#endif/ && kept[depth--] >= 0) continue
      for (d = 1; d <= depth; d++) if (kept[d] == 0) break
      if (d <= depth) continue
      # Nobody looks on, and nothing is tuned: what stands behind that condition, a line or a block, is always done.
      if (line ~ /^ *\/\/ Budget: |^ *tell\(/) continue
      gsub(/ && !has_twins<T>\(team\)|if \(!has_twins<T>\(team\)\) /, "", line)
      if (sub(/if \(!tuned\([^()]*\)\) /, "", line) && line ~ /^ *\{$/) { sub(/\{/, "}", line); block = line; continue }
      if (block != "" && line == block) { block = ""; continue }
      if (block != "") sub(/^  /, "", line)
      if (marks == "" && line ~ /^ *\/\/ (course [0-9.]+|end)$/) continue
      if (marks == "") sub(/  \/\/ course [0-9.]+.*$/, "", line)
      match(line, /^ */); indent = RLENGTH; at = substr(line, indent + 1)
      if (rule && indent == from_indent && begins("< " at, to[rule])) rule = 0
      else if (rule) {
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
  function title() { ruler = ""; say("// " double) }
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
tree.h | // Lays the growth out in preorder, as a depth-first | // The same, for trees of any size. | // Lays the growth out in preorder: children in the order of their addition.
tree.h | // How many nodes a tree has, the root not counted | } |
tree.h | inline int64_t full_tree_nodes( | } |

machine/numbers.h | // machine/numbers.h: | | // numbers.h: the functions of which every operation is made, for CPU and GPU.
machine/numbers.h | // There is a GPU to compile for: | #endif |
machine/numbers.h | //   UNROLL_STEPS | |
machine/numbers.h | #define UNROLL_STEPS _Pragma | |
machine/numbers.h | #define UNROLL_STEPS | |
machine/numbers.h | // bfloat16: the upper half of a float. | < HD inline float to_float(float x) |
machine/numbers.h | if constexpr (std::is_same<W, bf16> | else return W(x); | return W(x);
machine/numbers.h | constexpr int kTogether = | | constexpr int kTogether = 1;
machine/numbers.h | HD_INLINE double erf_terms( | } |
machine/numbers.h | // The outputs of a panel of weights | // How many steps of a sum over k lie | // How many steps of a sum over k lie side by side in memory.
machine/numbers.h | // Each function is one formula for both types, and exp for | | // Each function is one formula for both types. The types differ in the
machine/numbers.h | // exact result. The errors were measured on | // checks bounds just above them. | // exact result. The errors were measured on every seventh float and 2 * 10^7 doubles.

sample.h | // A token that the text already contains | float repetition_penalty |
sample.h | bool penalizes() | |
sample.h | // p: (V) the distribution that `pick` samples | } |

draft.h | // Nodes of a growing tree that its drafter | }; |
draft.h | // Texts side by side: the same for drafters | virtual bool prepare_all( |
draft.h | // functions; the bigram drafter. All other | | // functions; the bigram drafter.
draft.h | // Called before begin(), with what can be read | virtual void attach( |
draft.h | // The same drafter for another text, which has | virtual const std::string& author( |
draft.h | std::unique_ptr<Drafter> another( | |
draft.h | // How to add a drafter: | //   3. |

decode.h | // forwards; the planner and the runner of the core; | // forest/. | // forwards; the planner and the runner; the loop. It reads no clock and no command line, and knows no model.
decode.h | // One that grows each tree for itself, from | | // One that grows each tree for itself, no node deeper than `room`.
decode.h | virtual bool opened( | |
decode.h | virtual void close( | |
decode.h | if (!text.wanted()) return runner.close | | if (!text.wanted()) return;
decode.h | if (!text->wanted()) {  // no token was | } |
decode.h | if (!runner.opened(*text)) continue; | |
decode.h | // (V) what the token after a node of | // The token that the target picks there. | // The token that the target picks after a node of the tree that was run.
decode.h | return pick(logits_after( | | return pick(target.logits(node), row, vocab_size, sampling);
decode.h | if (text.empty()) throw | | if (text.empty()) throw std::runtime_error("the prompt is empty");
decode.h | std::to_string(vocab) + | | std::to_string(vocab));

machine/packing.h | constexpr int kManyCaches | // lies. Behind them | // Memory for all these panels, side by side in this order. Sets where each one lies.
machine/packing.h | size_t size = 0, scratch = 0; | | size_t size = 0;
machine/packing.h | if constexpr (std::is_same<W, AnyNumber>::value) scratch | |
machine/packing.h | Array<W> memory(size + scratch, | | Array<W> memory(size, cuda);
machine/packing.h | panels->far = | |
machine/packing.h | if constexpr (std::is_same<W, AnyNumber>::value) panels->scratch | |
machine/packing.h | // Without panels: both products read | } |
machine/launch_gradients.h | // p, ds: scratch. Where the | // is not used. A twin does | // p, ds: (R, H, most keys) scratch.

kernels.cuh | // lanes does to one row. A group | // Shapes: rows R | // lanes does to one row; a group is a core of a CPU, or a warp of a GPU. The same code serves both. At the end three\n// operations are also written as CUDA kernels. The file knows nothing of threads, models or files.\n//\n// Shapes: rows R (all tokens of a forward), channels C, heads H, head size D, vocabulary V. Matrices that a matmul
kernels.cuh | const T *wte, *wpe; | | const T *wte, *wpe;  // (V, C), (block, C)
kernels.cuh | // A weight (K inputs, N outputs), as panels. | }; |
kernels.cuh | // In bf16 two steps of the sum that reads them | // These are the bytes |
kernels.cuh | // out (R, N) = x (R, K) W: one serial sum | // GPU's tuned versions (cuda | // out (R, N) = x (R, K) W: one serial sum over k for each output. A call computes columns begin ..
kernels.cuh | bool in_cache = false; | bool cache_is_read = true; |
kernels.cuh | // So many positions, from the first on, lie | HD int unseen_at | HD int unseen(int /*row*/) const { return 0; }  // it sees all of its past
kernels.cuh | // Tree attention. On a GPU its tuned | | // Tree attention
kernels.cuh | // The first CUDA kernels: tree attention | // Each has the bits | // The first CUDA kernels: tree attention, the gather, the matmul. Each has the bits of the operation above.
machine/numbers.h | // Its approximation by tanh | }; |
machine/numbers.h | // SiLU(x) = x / (1 + exp(-x)) | }; |
kernels.cuh | // The norm of each head | }; |
kernels.cuh | bool by_tanh = false; | |
kernels.cuh | if (by_tanh) g.map( | else g.map(y, | g.map(y, end - begin, [=](int c) { return Gelu::of(x[c]); });
kernels.cuh | // act = SiLU(gate) up (Shazeer | }; |
kernels.cuh | // Rotary positions (Su et al. | }; |

rows.h | // A batch whose arrays are somebody else's | DeviceBatch(const int* tokens, |

model.h | // model.h: one transformer: | | // model.h: the transformer: GPT as nanoGPT defines it.
model.h | bool tanh = false; | // What Llama (Touvron et al. | // What other models do differently. 0 stands for GPT's size.
model.h | bool rotary = false; | bool swiglu = false; |
model.h | bool qkv_bias = false; | std::vector<float> rope_factors | float norm_epsilon = 1e-5f;
model.h | bool cache_is_read = !training; | |
model.h | .dropout = dropout_at(dropout, l, | .span = a.config.span | .dropout = dropout_at(dropout, l, kDropAttention)};
model.h | *fc_proj, *fc_proj_bias; | |
model.h | T *ln_1, *ln_1_bias, *qkv, | | T *ln_1, *ln_1_bias, *qkv, *qkv_bias, *proj, *proj_bias, *ln_2, *ln_2_bias, *fc, *fc_bias, *fc_proj, *fc_proj_bias;
model.h | bool biased = false) { | |
model.h | const auto linear = | | const auto linear = [&](const std::string& name, int in, int out, float init_std, T*& weight, T*& bias) {
model.h | if (biased | | if (config.bias) f(name + ".bias", {out}, 0.0f, bias);
model.h | linear(block + "attn.c_attn", | if (config.qk_norm) f(block + "attn.k_norm | linear(block + "attn.c_attn", C, config.qkv_size(), std, layer.qkv, layer.qkv_bias);
model.h | // (L, R, Q) queries and keys before their norms | Rows<T> raw = |
model.h | // The norms of each head | < // out (R, C) = residual |
model.h | // act (R, F) = GELU(pre) or SwiGLU(pre), | | // act (R, F) = GELU(pre), with pre (R, hidden) = x W + bias.
model.h | Attention<T, S> attention_of(const Team& team, | | Attention<T, S> attention_of(const Team&, const DeviceBatch& batch, const Activations<T, S>& a, int l,
model.h | if (c.qk_norm) { | if (c.rotary) turn( |
model.h | int hidden() const { | | int hidden() const { return inner(); }                                   // what the MLP's first matrix gives
model.h | if (!config.rotary) f( | | f("wpe.weight", {config.block_size, C}, std, wpe);
model.h | std::vector<Weight<T, W>*> list(const Config& c, | | std::vector<Weight<T, W>*> list(const Config& c, bool) {
model.h | if (c.rotary) { | } |
model.h | Rows<T> pre = per_layer(G); | | Rows<T> pre = per_layer(G);                    // (L, R, F) before the GELU
model.h | void activate(const RowBlock& b, const Config& c, | | void activate(const RowBlock& b, const Config&, const Normalized<T>& x, const Weight<T, W>& fc, View<T> pre,
model.h | if (!c.swiglu) { | launch_columns( | matmul(b.team, b.rows, product(x, fc.forward, pre), BiasGelu<T>{pre.at, act.at, pre.stride, fc.bias});\nb.team.wait();
model.h | // qkv (R, Q) = norm_1(x) W + bias, each | | // qkv (R, Q) = norm_1(x) W + bias
model.h | // att (R, H D) = attention(qkv, cache), which | | // att (R, H D) = attention(qkv, cache), after it has written the rows' keys and values there
model.h | // act (R, F) = GELU(norm_2(mid) W + bias), or | | // act (R, F) = GELU(norm_2(mid) W + bias)
model.h | // The table of a model's tensors. A model's sizes | | // The table of a model's tensors.
model.h | // Weights as the forward reads them: | } | // Weights as the forward reads them: panels
model.h | // flat: the parameters, in the device | // transposes, which | // flat: the parameters, in the device's memory; each pack() reads them again. training: with the transposes too.
model.h | if (kTuned && cuda | else memory = place_weights( | memory = place_weights(all, training, cuda);
model.h | size_t bytes() const { | // their use, which | // Points all weights at the tensors. Returns them in the order of their use.
model.h | Panels<W> symbols; | Array<W> memory; | Array<W> memory;    // all panels
model.h | // A table of 8 to 4 bits | if (w.symbols.data) unpack( |
model.h | Rows<T> attention_scratch = | | Rows<T> attention_scratch = once(R, size_t(H) * slots);
model.h | // Compiled once | |

target.h | // The same on another target's threads: | Target(const Config& config, const TensorSource& weights, Dtype dtype, std::shared_ptr | // most_rows: the rows of the largest tree, its root among them.\nTarget(const Config& config, const TensorSource& weights, Dtype dtype, std::shared_ptr<Pool> pool, int most_rows,
target.h | // most_rows: the rows of the largest tree | Target(const Target&) | Target(const Target&) = delete;
target.h | // It has what decode.h asks of a target, and what | // whole iterations of a text | // It has what decode.h asks of a target.
target.h | reuse(tokens, n); | const int first = past(); | seat_->past = 0;
target.h | clear_rows(); | | rows_.clear();
target.h | add_tree(token, depth, end, n); | | rows_.add_tree(token, depth, end, n, first_slot(), past());
target.h | whole_ = layers == 0; | host_logits_ = cuda() && alone | host_logits_ = forward_here(with_logits, layers);
target.h | for (int i = 0; whole_ && | seat_->past += n; | seat_->past += n;
target.h | std::vector<int> cached; | |
target.h | // The next forward writes behind the | } |
target.h | // The same for the trees of several | } |
target.h | Dtype cache_dtype = Dtype::fp32, int seats = 1) | | int seats = 1)
target.h | if (cache_dtype == Dtype::fp32) | else activations_ = | activations_ = Activations<float>(config, most_rows_, slots, false, pool_->size(), cuda);
target.h | for (auto* cache : {&a.k, &a.v}) | norm_ = &a.norm_f; |
target.h | layers_run_ = with_logits | |
target.h | std::variant<Activations<float, float>, | | std::variant<Activations<float>> activations_;
target.h | const Rows<float>*x_ = nullptr, | | const Rows<float>* device_logits_ = nullptr;  // of the activations
target.h | const float* host_logits_ = nullptr; | | const float* host_logits_ = nullptr;          // of the last forward
target.h | int V_ = 0, layers_run_ = 0; | bool whole_ = true; | int V_ = 0;                   // the row stride of the logits
target.h | if (cuda) prepare_iterations(); | layers_run_ = 0; |
target.h | int most_rows() const | int all_rows() const |
target.h | const std::shared_ptr<Pool>& pool() const | int prefill( | // Caches n tokens at positions 0 .. n - 1, and forgets all others.\nvoid prefill(const int* tokens, int n) {
target.h | if (cuda()) wait_for_iterations(); | return n - first; |
target.h | // After this, a prefill runs all of its | } |
target.h | // (C) of a row of the last forward: | const float* hidden( |
target.h | // Sets how many positions count as cached. | // Calls f(team) on the threads that a forward |
target.h | void on_threads(int rows, | | void on_threads(int /*rows*/, F&& f) const {
target.h | pool_->run(f, | | pool_->run(f);
target.h | const auto start = std::chrono::steady_clock::now(); | |
target.h | team_.took( | |
target.h | void prepare_iterations() {} | const float* forward_on_gpu(int n, int layers) { return |
target.h | TeamChoice team_; | |

machine/single.cpp | // machine/single.cpp: the main() | // usage: | // The main: it trains a small model on a text, decodes plain and by trees, and compares the two generated texts.\n//\n// usage: build/single TEXT [UPDATES]        TEXT: any file; a token is a byte of it

gradients.cuh | // The gradient through HeadNorm | }; |
gradients.cuh | bool by_tanh = false; | |
gradients.cuh | if (by_tanh) | else g.map(store, | g.map(store, end - begin, [=](int c) { return Both{y[c] * Gelu::slope(x[c]), Gelu::of(x[c])}; });
gradients.cuh | // From gate_up and the gradient of act | }; |

train.h | void activate_backward(const RowBlock& b, const Config& c, | | void activate_backward(const RowBlock& b, const Config&, View<T> dy, const Weight<T, W>& w, View<T> pre,
train.h | if (!c.swiglu) { | launch(b.team | matmul(b.team, b.rows, through, GeluBackward<T>{pre.at, act.at, act.stride});\nb.team.wait();
train.h | // Queries and keys, of all rows, turn back | } |
train.h | if (c.qk_norm) head_norms_backward( | |
train.h | if (c.rotary && !c.qk_norm) turn( | |
train.h | static constexpr bool portable = | |
train.h | Rows<T> p = a.once( | | Rows<T> p = a.once(a.R, size_t(a.H) * a.slots);
train.h | Rows<T> ds = a.once( | | Rows<T> ds = a.once(a.R, size_t(a.H) * a.slots);
train.h | // The mean cross-entropy of batch.target | < // One update of training; |
train.h | // One AdamW update with `gradient` as it is | } |
train.h | // Compiled once | |
RULES
