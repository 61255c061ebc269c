// course/heads12.cpp: what `make measure CHAPTER=12` measures: heads that are trained with the student's gradients, and
// the tokens that they guess right. play.sh puts the engine in one file before it, and compiles the two.
//
// The model writes texts. A head sees the state of the model at position i, which gave the model's token i + 1, and
// guesses token i + 2. In order: texts and states; a head and its training; the table.
namespace nanospec {
namespace {

constexpr int kWindow = 64;  // tokens, which one forward computes
const Team kTeam{};

// ---------------------------------------------------------------------------------------------------------------
// Texts and states

struct Examples {
  int channels = 0;
  std::vector<float> state;      // (n, channels)
  std::vector<int> next, after;  // (n) the token that follows the state's, and the one to guess
  int size() const { return int(after.size()); }
};

// States of the model over a text, window after window: what its last norm gives, and the head reads.
void add_states(const Config& config, const Weights<float, float>& weights, const std::vector<int>& text,
                Examples& to) {
  const Activations<float> a(config, kWindow, pad64(kWindow), true, 1, false);
  DeviceBatch batch(kWindow, 1, false);
  to.channels = config.n_embd;
  for (size_t at = 0; at + kWindow + 2 <= text.size(); at += kWindow) {
    Batch window;
    window.add_chain(&text[at], kWindow, 0, 0);
    window.target.assign(&text[at + 1], &text[at + 1 + kWindow]);
    batch.upload(window);
    forward(kTeam, config, weights, batch, a, kWindow, Dropout{});
    to.state.insert(to.state.end(), a.norm_f.data(), a.norm_f.data() + kWindow * config.n_embd);
    to.next.insert(to.next.end(), &text[at + 1], &text[at + 1 + kWindow]);
    to.after.insert(to.after.end(), &text[at + 2], &text[at + 2 + kWindow]);
  }
}

// The same with the embedding of the next token beside each state, as Hydra's heads see it (Ankner et al. 2024).
Examples with_next(const Examples& of, const float* embedding) {
  Examples wide{2 * of.channels, {}, of.next, of.after};
  for (int i = 0; i < of.size(); i++) {
    const float *state = &of.state[size_t(i) * of.channels], *token = embedding + size_t(of.next[i]) * of.channels;
    wide.state.insert(wide.state.end(), state, state + of.channels);
    wide.state.insert(wide.state.end(), token, token + of.channels);
  }
  return wide;
}

// Whether a token is the likeliest by a row of logits.
bool is_best(int token, const float* row, int vocab) { return std::max_element(row, row + vocab) - row == token; }

// ---------------------------------------------------------------------------------------------------------------
// A head: logits (V) = state W

struct Head {
  int inputs, vocab, updates = 0;
  std::vector<float> weight = std::vector<float>(size_t(inputs) * vocab), m = weight, v = weight;

  // How many of these guesses are right.
  int right(const Examples& all) {
    int count = 0;
    const std::vector<float> logits = run(all.state.data(), all.size());
    for (int i = 0; i < all.size(); i++) count += is_best(all.after[i], &logits[size_t(i) * vocab], vocab);
    return count;
  }

  // One update by AdamW, with examples that are a function of its number.
  void train(const Examples& all) {
    constexpr int rows = 256;
    std::vector<float> states, loss(rows), gradient(weight.size(), 0.0f);
    std::vector<int> target;
    for (int row = 0; row < rows; row++) {
      const size_t at = random_bits(1, uint32_t(row), kStreamBatch, uint64_t(updates), 0) % size_t(all.size());
      states.insert(states.end(), &all.state[at * inputs], &all.state[at * inputs] + inputs);
      target.push_back(all.after[at]);
    }
    std::vector<float> logits = run(states.data(), rows);
    launch(kTeam, rows,
           CrossEntropy<float>{logits.data(), vocab, vocab, target.data(), loss.data(), true, 1.0f / rows});
    launch(kTeam, inputs,
           MatmulGradient<float>{rows, inputs, vocab, states.data(), inputs, logits.data(), vocab, gradient.data()});
    const Piece piece{0, int(weight.size()), 0};
    const float norm[2] = {0, 1}, rate = 0.01f;
    updates++;
    launch(kTeam, 1,
           AdamW<float>{&piece, weight.data(), m.data(), v.data(), gradient.data(), norm, rate, 0, 0.9f, 0.99f,
                        float(1 - power(0.9, updates)), float(1 - power(0.99, updates))});
  }
  std::vector<float> run(const float* states, int rows) {
    Weight<float, float> packed(weight.data(), inputs, vocab);
    const Array<float> memory = place_weights(std::vector<Weight<float, float>*>{&packed}, false, false);
    packed.pack(kTeam);
    std::vector<float> logits(size_t(rows) * vocab), in(states, states + size_t(rows) * inputs);
    matmul(kTeam, rows, product(View<float>{in.data(), inputs}, packed.forward, View<float>{logits.data(), vocab}));
    return logits;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The table

void row_of_table(const char* what, int updates, double right, int numbers, int products, double seconds) {
  printf("  %-34s %8d %10.3f %18.3f %10d %12d %9.1f s\n", what, updates, right, 1 + right, numbers, products, seconds);
  fflush(stdout);
}

void measure_heads() {
  std::string symbols = "\n";
  for (char c = ' '; c <= '~'; c++) symbols += c;
  const Config config = article(int(symbols.size()));
  const int V = config.vocab_size, C = config.n_embd;
  const auto pool = std::make_shared<Pool>(1, false, true);
  std::vector<float> flat = given_weights(config);
  Target target(config, flat.data(), Dtype::fp32, pool, kBudget + 1);
  Weights<float, float> weights(config, {config, flat.data()}, false);
  weights.pack(kTeam);

  Examples known, held_out;
  std::vector<int> tokens;  // of the texts to learn from
  const char* const prompts[] = {"First Citizen:\n", "KING RICHARD:\n", "What is the ", "Good my lord, ",
                                 "JULIET:\nO ",      "I will not ",     "The people ",  "Come, sir"};
  printf("The model writes 8 texts of %d tokens ...\n", kNewTokens);
  fflush(stdout);
  for (const char* prompt : prompts) {
    std::vector<int> text;
    for (const char* c = prompt; *c; c++) text.push_back(int(symbols.find(*c)));
    int forwards = 0;
    text = decode(target, nullptr, text, &forwards);
    const bool last_two = prompt == prompts[6] || prompt == prompts[7];
    add_states(config, weights, text, last_two ? held_out : known);
    if (!last_two) tokens.insert(tokens.end(), text.begin(), text.end());
  }
  const float* const embedding = Tensors<float>(config, flat.data()).wte;

  printf("%d examples to learn from, %d to be judged by\n\n", known.size(), held_out.size());
  printf("  %-34s %8s %10s %18s %10s %12s %11s\n", "who guesses token i + 2", "updates", "right", "tokens a forward",
         "numbers", "products", "training");
  const std::vector<float> table = bigram_table(tokens, V);
  int right = 0;
  for (int i = 0; i < held_out.size(); i++)
    right += is_best(held_out.after[i], &table[size_t(held_out.next[i]) * V], V);
  row_of_table("the bigram table", 0, double(right) / held_out.size(), V * V, 0, 0);
  for (int inputs : {C, 2 * C}) {
    const Examples from = inputs == C ? known : with_next(known, embedding);
    const Examples judged = inputs == C ? held_out : with_next(held_out, embedding);
    Head head{inputs, V};
    for (int k = 0; k < C; k++)  // it begins as the model's own head: it guesses token i + 1 again
      for (int n = 0; n < V; n++) head.weight[size_t(k) * V + n] = embedding[size_t(n) * C + k];
    double seconds = 0;
    for (int updates : {0, 10, 100, 300, 1000}) {
      const auto start = std::chrono::steady_clock::now();
      while (head.updates < updates) head.train(from);
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      row_of_table(inputs == C ? "a Medusa head (the state)" : "a Hydra head (state, token i + 1)", updates,
                   double(head.right(judged)) / judged.size(), inputs * V, inputs * V, seconds);
    }
  }
}

}  // namespace
}  // namespace nanospec

int main() {
  try {
    nanospec::measure_heads();
    return 0;
  } catch (const std::exception& error) {
    fprintf(stderr, "heads12: %s\n", error.what());
    return 1;
  }
}
