// training/train_hydra.h: training heads on what the model itself said: those that see the path, train_drafter --hydra
// MODEL; and Medusa's, which see the root alone, train_drafter --medusa MODEL where the data are such texts.
//
// In order: the examples, which places of the texts they are and what the target computes of them; the trainer; its
// options. The loop and the program are in train_drafter.h. The model may be a GGUF file; it computes in the number
// type that it decodes with, so the heads learn from the states that they will see.
#pragma once

#include "files/gguf_model.h"
#include "files/said.h"
#include "training/train_drafter.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The examples

// An example is a place of a text: the state of the target that picked a root of the model's own, that root, and the K
// tokens behind it, all in the same text. Examples are numbered through the texts.
struct SaidTexts {
  std::vector<SaidText> texts;
  std::vector<size_t> first;  // (texts + 1) the number of each one's first example, and how many there are

  void add(const SaidText& said, int ahead) {
    if (first.empty()) first.push_back(0);
    const size_t own = said.tokens.size() - said.begin, needed = size_t(ahead) + 1;
    if (said.begin == 0 || own < needed) return;  // no state, or no place
    texts.push_back(said);
    first.push_back(first.back() + own - needed + 1);
  }
  size_t examples() const { return first.empty() ? 0 : first.back(); }
};
struct Lessons {
  SaidTexts train, validation;
};

// Records examples in their order. A text is run when its first example is asked for, behind the tokens that it has in
// common with the text before.
class ExampleRecorder {
 public:
  ExampleRecorder(const Lessons& lessons, Target& target) : lessons_(lessons), target_(target) {}

  void operator()(uint32_t i, Shard& shard) {
    const SaidTexts& from = i < kValidation ? lessons_.train : lessons_.validation;
    const size_t number = i % kValidation;
    const size_t text = size_t(std::upper_bound(from.first.begin(), from.first.end(), number) - from.first.begin()) - 1;
    const SaidText& said = from.texts[text];
    if (open_ != &said) run(said);
    const size_t place = said.begin + number - from.first[text], width = size_t(shard.sizes.channels);  // of the root
    const float* const state = states_.data() + (place - said.begin) * width;
    shard.states.insert(shard.states.end(), state, state + width);
    const auto its = said.tokens.begin() + long(place - 1);
    shard.token.insert(shard.token.end(), its, its + 1 + shard.sizes.after);
  }

 private:
  // states_ become those that picked the model's own tokens.
  void run(const SaidText& said) {
    const int first = int(said.begin) - 1, end = int(said.tokens.size()) - 1;
    const int window = target_.block_size();
    if (end > window) refuse("a text is longer than the model's window", std::to_string(window) + " tokens", kAdvice);
    states_.clear();
    target_.prefill(said.tokens.data(), first);
    for (int at = first, rows = 0; at < end; at += rows) {
      rows = std::min(target_.most_rows(), end - at);
      std::vector<int> all(static_cast<size_t>(rows));
      std::iota(all.begin(), all.end(), 0);
      Batch chain;
      chain.add_chain(said.tokens.data() + at, rows, 0, 0);
      target_.clear_rows();
      target_.add_tree(chain.token.data(), chain.depth.data(), chain.end.data(), rows);
      target_.run_rows(1);
      for (int row = 0; row < rows; row++)
        for (int layer : feature_layers(target_.layers()))
          states_.insert(states_.end(), target_.state(layer, row), target_.state(layer, row) + target_.channels());
      target_.keep(all.data(), rows);
    }
    open_ = &said;
  }

  static constexpr const char* kAdvice = "write the texts anew by nanospec distill with a smaller --max_new_tokens";
  const Lessons& lessons_;
  Target& target_;
  const SaidText* open_ = nullptr;
  std::vector<float> states_;  // (own tokens, 3 C) of the open text
};

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// The embeddings of n tokens, (n, C).
using Embeddings = std::function<void(const int* tokens, int n, float* to)>;

// Its examples are pieces of a shard of examples. Guess k = 0 .. K - 1 is made at the node of the k-th token behind the
// root, the root's own for k = 0, and is to say the token after that. Of Medusa's heads each is at the root.
template <class T>
class HydraTrainer : public DrafterTrainer<T> {
  using typename DrafterTrainer<T>::Said;

 public:
  const HydraSizes sizes;

  // class_of: (V) which guess a token is; ahead: K; rows: most of an update.
  HydraTrainer(const HydraSizes& s, std::vector<int> class_of, Embeddings embeddings, int ahead, int rows, Pool& pool)
      : DrafterTrainer<T>(hydra_table(s), pool),
        sizes(s),
        class_of_(std::move(class_of)),
        embeddings_(std::move(embeddings)),
        K_(ahead),
        most_(rows) {}

 private:
  T run(const Examples& some, bool with_gradient, const Said& said) override {
    const int R = some.n;
    load(some);
    this->pool_.run([&](const Team& team) { run(team, R, with_gradient); });
    for (int row = 0; said && row < K_ * R; row++)
      said(row / R, class_of_[size_t(token_[size_t(row)])], target_[size_t(row)], a_.logits.at(0, row),
           losses_.data()[row]);
    return loss_.data()[0];
  }
  void pack(const Team& team) const override { packed_.pack(team); }

  // Rows k R .. k R + R - 1 are the nodes of the k-th token behind the roots.
  void load(const Examples& some) {
    const int R = some.n, C = sizes.n_embd;
    token_.resize(size_t(K_ * R));
    target_.resize(size_t(K_ * R));
    embedded_.resize(size_t(K_ * R) * size_t(C));
    for (int i = 0; i < R; i++) {
      std::copy_n(some.shard.state(some.pieces[i], 0), sizes.features(), a_.features.at(0, i));
      const int32_t* const tokens = some.shard.tokens(some.pieces[i]) + 1;  // from the root on
      for (int k = 0; k < K_; k++) {
        token_[size_t(k * R + i)] = tokens[sees_root(k) ? 0 : k];
        target_[size_t(k * R + i)] = class_of_[size_t(tokens[k + 1])];
      }
    }
    embeddings_(token_.data(), K_ * R, embedded_.data());
    for (int row = 0; row < K_ * R; row++)
      std::copy_n(embedded_.data() + size_t(row) * size_t(C), C, a_.input.at(0, row) + sizes.width);
  }
  bool sees_root(int k) const { return k == 0 || sizes.heads > 0; }
  int step_of(int k) const { return sizes.heads > 0 ? k : 0; }
  View<T> above(int k, int R) const { return sees_root(k) ? view(a_.above, 0) : view(a_.state, (k - 1) * R); }

  void run(const Team& team, int R, bool with_gradient) {
    const int rows = K_ * R;
    hydra_roots(team, sizes, packed_, R, a_);
    for (int k = 0; k < K_; k++) hydra_step(team, sizes, packed_, step_of(k), k * R, R, above(k, R), a_);
    hydra_guess(team, sizes, packed_, rows, a_);
    const int V = int(a_.logits.stride);
    loss_of_rows(team, rows,
                 CrossEntropy<T>{a_.logits.data(), V, sizes.classes(), target_.data(), losses_.data(), with_gradient,
                                 T(1) / T(rows)});
    if (with_gradient) backward(team, R);
    launch_sum(team, Mean<T>{losses_.data(), rows, loss_.data()});
  }

  // With dlogits where the logits were.
  void backward(const Team& team, int R) {
    const int rows = K_ * R, S = sizes.width, C = sizes.n_embd, N = sizes.classes();
    const int s_row = int(a_.state.stride), low_row = int(a_.low.stride), logits_row = int(a_.logits.stride);
    const T* const dlogits = a_.logits.data();
    matmul_gradient(team, MatmulGradient<T>{rows, N, C, dlogits, logits_row, a_.low.data(), low_row, by_name_.guess});
    matmul(team, rows, Matmul<T, T>{dlogits, logits_row, packed_.guess.transposed, dlow_.data(), low_row});
    team.wait();
    matmul_gradient(team, MatmulGradient<T>{rows, S, C, a_.norm.data(), s_row, dlow_.data(), low_row, by_name_.down});
    matmul(team, rows, Matmul<T, T>{dlow_.data(), low_row, packed_.down.transposed, dnorm_.data(), s_row});
    zero(team, dstate_.data(), dstate_.size());
    zero(team, dabove_.data(), dabove_.size());
    team.wait();
    launch(team, rows,
           norm_backward(norm_of_states(sizes, view(a_.state, 0), view(a_.norm, 0), a_.rstd.data()), view(dnorm_, 0),
                         view(dstate_, 0)));
    for (int k = K_ - 1; k >= 0; k--) step_backward(team, R, k);
    matmul_gradient(team, MatmulGradient<T>{R, sizes.features(), S, a_.features.data(), int(a_.features.stride),
                                            dabove_.data(), s_row, by_name_.features});
    team.wait();
  }
  // s = p + SiLU(pre), pre = W [n(p); n(e)] + b.
  void step_backward(const Team& team, int R, int k) {
    const int S = sizes.width, in_row = int(a_.input.stride), s_row = int(a_.state.stride), first = k * R;
    T *const dstate = dstate_.at(0, first), *const dpre = dpre_.data();
    const View<T> dparent = sees_root(k) ? view(dabove_, 0) : view(dstate_, first - R);
    const size_t its = size_t(step_of(k));
    add(team, dstate, dpre, size_t(R) * size_t(s_row), true);
    add(team, dstate, dparent.at, size_t(R) * size_t(s_row));
    launch_columns(team, R, S, SiluBackward<T>{a_.pre.at(0, first), dpre, s_row});
    matmul_gradient(team, MatmulGradient<T>{R, sizes.inputs(), S, a_.input.at(0, first), in_row, dpre, s_row,
                                            by_name_.step[its], by_name_.bias[its]});
    matmul(team, R, Matmul<T, T>{dpre, s_row, packed_.step[its].transposed, dinput_.data(), in_row});
    team.wait();
    launch(team, R,
           norm_backward(norm_of_states(sizes, above(k, R), view(a_.input, first), a_.rstd_in.at(0, first)),
                         view(dinput_, 0), dparent));
  }

  const std::vector<int> class_of_;  // (V)
  const Embeddings embeddings_;
  const int K_, most_;  // guesses of an example; examples
  HydraWeights<T, T> packed_{sizes, this->weights.data(), true};
  HydraTensors<T> by_name_{sizes, this->gradient.data()};
  HydraActivations<T> a_{sizes, most_, K_* most_};
  Rows<T> dlow_{1, size_t(K_* most_), a_.low.stride};
  Rows<T> dnorm_{1, size_t(K_*most_), a_.norm.stride}, dstate_{1, size_t(K_*most_), a_.state.stride};
  Rows<T> dabove_{1, size_t(most_), a_.state.stride}, dpre_{1, size_t(most_), a_.state.stride};  // (R, S)
  Rows<T> dinput_{1, size_t(most_), a_.input.stride};                                            // (R, S + C)
  Array<T> losses_{size_t(K_ * most_)}, loss_{1};
  std::vector<int> token_, target_;  // (K R) of the nodes; the classes that came
  std::vector<float> embedded_;      // (K R, C)
};

// ---------------------------------------------------------------------------------------------------------------
// Its options

// The heads before training: the guesses begin as the target's head says these tokens. "Another token" begins at zero.
inline std::vector<float> initial_hydra(const HydraSizes& sizes, const std::vector<int>& token,
                                        const Embeddings& head_rows, uint64_t seed) {
  std::vector<float> weights = initial_weights(hydra_table(sizes), seed);
  float* const guess = weights.data() + hydra_table(sizes).back().offset;
  std::fill_n(guess, size_t(sizes.classes()) * size_t(sizes.n_embd), 0.0f);
  head_rows(token.data(), int(token.size()), guess);
  return weights;
}

struct HydraOptions : DistillOptions {
  int ahead_tokens = 4, width = 0, vocabulary = kBigramMostTokens - 1;
  float epochs = 3;
  HydraSizes sizes;
  std::shared_ptr<Lessons> lessons = std::make_shared<Lessons>();
  std::vector<int> token;        // (N)
  std::vector<int> class_of;     // (V) which guess a token is; N: none of them
  std::shared_ptr<Target> runs;  // computes states, and gives embeddings

  HydraOptions() : HydraOptions("hydra") {}
  explicit HydraOptions(const char* name) : DistillOptions({name, "heads", "depth", Recorded::kExamples, false}) {
    batch_size = 256;
    max_iters = eval_interval = 0;
  }
  bool sees_path() const { return words.name == "hydra"; }
  Command command() {
    const std::string flag = "--" + words.name;
    const std::vector<Flag> own = {
        heading("Heads"),
        {sees_path() ? "--hydra_ahead" : "--medusa_heads", "N", &ahead_tokens,
         sees_path() ? "how many tokens of a path they learn to say"
                     : "how many: head k says the k-th token after the "
                       "next",
         from(1, kMostAhead)},
        {flag + "_width", "N", &width, "numbers of a state; 0: twice the model's channels", from(0, kMaxChannels)},
        {flag + "_vocabulary", "N", &vocabulary, "how many tokens they can say: those that the model says most often",
         from(1, kMaxVocabulary)},
        {"--epochs", "X", &epochs, "how often they see each example, where --max_iters is 0", above(0, 1e6)}};
    const std::string see = sees_path() ? "that see the path" : "that see the root";
    return {"train_drafter " + flag,
            "Trains heads " + see + " on MODEL, which stays as it is, for nanospec --drafter " + words.name +
                ". They learn from what the model itself said: nanospec distill writes that. Runs on the CPU.",
            "nanospec distill --model models/SmolLM2-135M-Instruct.Q4_1.gguf --tokens 400k --out said.jsonl\n"
            "train_drafter " +
                flag + " models/SmolLM2-135M-Instruct.Q4_1.gguf --data said.jsonl\n",
            distill_flags(*this, own)};
  }
  void set_sizes(const DistillRun& run) {
    const int64_t epoch = int64_t(run.train_shards) * (run.sizes.sequences / std::min(batch_size, run.sizes.sequences));
    if (max_iters == 0) max_iters = int(std::max(1.0, std::min(double(INT_MAX), double(epochs) * double(epoch))));
    if (eval_interval == 0) eval_interval = int(std::max<int64_t>(1, epoch));
    lr_decay_iters = max_iters;
  }
  Metadata settings() const {
    return {{"ahead", std::to_string(ahead_tokens)},
            {"width", std::to_string(sizes.width)},
            {"vocabulary", std::to_string(sizes.tokens)}};
  }
  int ahead() const { return ahead_tokens; }
  std::unique_ptr<DrafterTrainer<float>> trainer(const DistillRun& run, Pool& pool) {
    const auto embeddings = [its = target_of(run)](const int* tokens, int n, float* to) {
      embed(*its, Team{}, n, tokens, {to, its->channels()});
    };
    const auto head_rows = [its = target_of(run)](const int* tokens, int n, float* to) {
      unpack(Team{}, n, Unpack<float, AnyNumber>{tokens, its->weights().head.forward, to, its->channels()});
    };
    auto heads = std::make_unique<HydraTrainer<float>>(sizes, class_of, embeddings, ahead_tokens,
                                                       std::min(batch_size, run.sizes.sequences), pool);
    heads->set_weights(initial_hydra(sizes, token, head_rows, seed).data());
    return heads;
  }
  Metadata metadata() const { return {}; }
  std::vector<TensorData> more_tensors() const { return {{"token", {sizes.tokens}, token.data(), "I32"}}; }
  std::string described() const {
    return filled(", {} tokens {}, {} different ones", ahead_tokens, sees_path() ? "of a path" : "behind the root",
                  thousands(sizes.tokens));
  }
  void add_figures(Json& stats) const {
    stats.update({{sees_path() ? "hydra_ahead" : "medusa_heads", ahead_tokens},
                  {words.name + "_width", sizes.width},
                  {words.name + "_vocabulary", sizes.tokens}});
  }
  const std::shared_ptr<Target>& target_of(const DistillRun& run) {
    constexpr int kRows = 256;  // of a forward
    if (!runs)
      runs = std::make_shared<Target>(run.model.config, run.model.source(), Dtype::as_stored, false, threads, kRows);
    return runs;
  }
};

struct MedusaOfTexts : HydraOptions {
  MedusaOfTexts() : HydraOptions("medusa") {}
};

// The hash of a model's weights as its file has them.
inline std::string weights_hash(const std::string& model) {
  if (!is_gguf(model)) return model_hash(model);
  const GgufFile file = read_gguf(model);
  return hash_of(Pieces{{reinterpret_cast<const char*>(file.bytes.get()), file.size}});
}

// Reads the texts, those that are held out apart, and says which tokens the heads know.
inline void read_lessons(HydraOptions& o, DistillRun& run, const std::string& bytes) {
  const int V = run.model.config.vocab_size;
  std::vector<int> count(size_t(V), 0), all;
  each_said(bytes, o.data, V, [&](const SaidText& said) {
    (said.held_out ? o.lessons->validation : o.lessons->train).add(said, o.ahead_tokens);
    if (said.held_out) return;
    if (run.text.begin.empty()) run.text.begin = said.question;
    for (size_t i = said.begin; i < said.tokens.size(); i++) count[size_t(said.tokens[i])]++;
    all.insert(all.end(), said.tokens.begin() + long(said.begin), said.tokens.end());
  });
  for (int id = 0; id < V; id++)
    if (count[size_t(id)] > 0) o.token.push_back(id);
  const auto oftener = [&](int a, int b) { return count[size_t(a)] > count[size_t(b)]; };
  std::stable_sort(o.token.begin(), o.token.end(), oftener);
  o.token.resize(std::min(o.token.size(), size_t(o.vocabulary)));
  o.class_of.assign(size_t(V), int(o.token.size()));
  for (size_t i = 0; i < o.token.size(); i++) o.class_of[size_t(o.token[i])] = int(i);
  for (int id : all) run.text.parts.train.push_back(o.class_of[size_t(id)]);
}

// As for text: reads the model and what it said, and says which shards the run is of.
inline DistillRun open_run(HydraOptions& o) {
  constexpr size_t kMostBytes = 64 << 20;  // of a shard
  check_rates(o, "train_drafter --" + o.words.name);
  DistillRun run{o, is_gguf(o.dir) ? load_gguf(read_gguf(o.dir), 0, Dtype::as_stored) : load_model(o.dir)};
  const Config& config = run.model.config;
  const std::string bytes = read_file(o.data);
  read_lessons(o, run, bytes);
  const size_t train = o.lessons->train.examples(), held_out = o.lessons->validation.examples();
  if (train == 0 || held_out == 0)
    refuse(filled("{} places to learn from and {} held out, of texts with more than {} tokens",
                  thousands(double(train)), thousands(double(held_out)), o.ahead_tokens),
           printable(o.data, 300), "let nanospec distill write more");
  o.sizes = {config.n_embd, o.width > 0 ? o.width : 2 * config.n_embd, int(o.token.size()),
             o.sees_path() ? 0 : o.ahead_tokens};
  const size_t fit = kMostBytes / (sizeof(bf16) * size_t(o.sizes.features())), most = std::min({train, held_out, fit});
  run.sizes = {int(most), 1, o.sizes.features(), Recorded::kExamples, o.ahead_tokens + 1};
  run.train_shards = int(train / most);
  run.validation_shards = int(held_out / most);
  o.tokens = run.train_shards * run.sizes.sequences;
  run.classes = o.sizes.classes();
  run.guesses = o.sizes.tokens;
  run.text.settings = {{"seed", std::to_string(o.seed)},
                       {"data_sha256", sha256(bytes)},
                       {"weights", weights_hash(o.dir)},
                       {"layers", joined(feature_layers(config.n_layer), ",")}};
  const Metadata said = text_origin(o.data, run.text.settings.at("data_sha256"));
  run.text.origin = {{"said", said_by(said, "text")},
                     {"said_sha256", said_by(said, "text_sha256")},
                     {"model", model_hash(o.dir)},  // none of a GGUF file: other number types of it will do
                     {"tokenizer", tokenizer_hash(o.dir)}};
  run.recorder = [&o](const DistillRun& its) -> RecordSequence {
    return [recorder = std::make_shared<ExampleRecorder>(*o.lessons, *o.target_of(its))](uint32_t i, Shard& shard) {
      (*recorder)(i, shard);
    };
  };
  return run;
}

}  // namespace nanospec
