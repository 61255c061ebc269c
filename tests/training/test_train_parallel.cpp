// tests/training/test_train_parallel.cpp: training the parallel drafter: the caterpillar, gradients, segments, and the
// program.
#include <doctest/doctest.h>

#include <climits>

#include "tests/error_of.h"
#include "tests/parallel_world.h"

using namespace nanospec;

TEST_CASE("parallel: the gradient is that of finite differences, in double, whatever the segments") {
  const Config config = tiny_config();
  const std::vector<float> target = some_weights(config, 2);
  Pool pool(1);
  for (const auto& [sequential, ahead, tokens] :
       {std::tuple<bool, int, int>{false, 4, 0}, {true, 4, 0}, {false, 1, 0}, {true, 1, 0}, {false, 3, 7}}) {
    ParallelSizes s = tiny_sizes(config, sequential);
    s.ahead = ahead;    // 1: no slots at all
    s.tokens = tokens;  // of a head of its own
    const std::vector<int> class_of = tokens > 0 ? every_third_class(config.vocab_size, tokens) : std::vector<int>();
    const int n = 11, both[] = {0, 1};
    const Shard shard = some_shard(config, 2, n, s.ahead);
    const Examples batch{shard, both, 2};
    std::vector<double> start = start_of<double>(s);
    // The states of a sequential drafter are fed back without a gradient. Where they weigh nothing yet, what they are
    // does not matter, and what their weights' gradient is does.
    const size_t C = size_t(s.n_embd), states = parallel_table(s)[1].offset + C * C;
    if (sequential) std::fill_n(start.begin() + long(states), C * C, 0.0);
    std::vector<double> whole;
    for (int segments : {1, 2, 3, 6, 11, 40}) {
      ParallelTrainer<double> trainer(s, config, {config, target.data()}, n, segments, pool, class_of);
      trainer.set_weights(start.data());
      trainer.loss_and_gradient(batch);
      const std::vector<double> gradient(trainer.gradient.data(), trainer.gradient.data() + trainer.gradient.size());
      if (segments == 1) whole = gradient;
      double worst = 0, largest = 0;
      for (size_t i = 0; i < whole.size(); i++) {
        worst = std::max(worst, std::abs(gradient[i] - whole[i]));
        largest = std::max(largest, std::abs(whole[i]));
      }
      CAPTURE(s.sequential);
      CAPTURE(s.ahead);
      CAPTURE(segments);
      CHECK(largest > 1e-3);
      CHECK(worst < 1e-12 * largest);
    }
    ParallelTrainer<double> trainer(s, config, {config, target.data()}, n, 1, pool, class_of);
    for (const TensorSpec& spec : parallel_table(s))
      for (int probe = 0; probe < 3; probe++) {
        const size_t i = spec.offset + random_bits(7, uint32_t(probe), 1, spec.offset, 0) % spec.size;
        const double h = 1e-5;
        std::vector<double> moved = start;
        double loss[2];
        for (int side : {0, 1}) {
          moved[i] = start[i] + (side ? h : -h);
          trainer.set_weights(moved.data());
          loss[side] = trainer.loss(batch);
        }
        CAPTURE(spec.name);
        CHECK((loss[1] - loss[0]) / (2 * h) == doctest::Approx(whole[i]).epsilon(1e-5).scale(1e-3));
      }
  }
}

TEST_CASE("parallel: what trains has the target's own last norm and head, bit for bit") {
  Config gpt = tiny_config(), llama = tiny_config();
  gpt.bias = true;
  llama.tied = llama.center = false, llama.rotary = llama.swiglu = true, llama.norm_epsilon = 0.5f;
  for (const Config& config : {gpt, llama}) {
    CAPTURE(config.tied);
    const int rows = 5, V = pad16(config.vocab_size);
    const std::vector<float> weights = some_weights(config, 2);
    const Team one{0, 1, nullptr, false};
    const FrozenHead<float> frozen(config, {config, weights.data()}, true, one);
    const ParallelActivations<float> a(tiny_sizes(config, false), rows, rows, 64, true, 1);
    float* const x = a.x.at(a.L, 0);
    Chance chance(4);
    chance.fill(x, size_t(rows) * size_t(a.C), 2);
    std::vector<float> norm(size_t(rows * a.C) + 16), expected(size_t(rows * V) + 16), logits(expected.size());
    const Target target(config, weights.data(), Dtype::fp32, false, 1, rows);
    head_of(target, target.weights().head.forward, one, rows, x, a.C, norm.data(), {expected.data(), V});
    Tensors<const float> ends = target.weights().tensors;  // where there is another head
    Array<float> unpacked;
    ends.wte = embedding_of(target, unpacked);
    const FrozenHead<float> norm_alone(config, ends, false, one);
    launch(one, rows, norm_alone.norm(a, 0));
    for (int row = 0; row < rows; row++)
      CHECK(memcmp(a.norm_f.at(0, row), &norm[size_t(row * a.C)], size_t(config.n_embd) * 4) == 0);
    CHECK(memcmp(norm_alone.embedding.data(), weights.data(), size_t(config.vocab_size * config.n_embd) * 4) == 0);
    launch(one, 3, frozen.norm(a, 2));  // from the third row on
    launch(one, 2, frozen.norm(a, 0));
    matmul(one, rows, Matmul<float, float>{a.norm_f.data(), a.C, frozen.head.forward, logits.data(), V});
    for (int row = 0; row < rows; row++)
      CHECK(memcmp(&logits[size_t(row * V)], &expected[size_t(row * V)], size_t(config.vocab_size) * 4) == 0);
  }
}

TEST_CASE("parallel: a caterpillar is the tree that it is said to be") {
  const int n = 7, K = 3;
  for (const auto& [begin, end] : {std::pair<int, int>{0, 7}, {2, 5}, {6, 7}, {0, 1}}) {
    Batch batch;
    std::vector<int> tokens;
    for (int i = 0; i < n + K; i++) tokens.push_back(10 * i);
    add_caterpillar(batch, tokens.data(), n, begin, end, K);
    REQUIRE(batch.rows() == n + (end - begin) * K);
    const auto sees = [&](int row, int other) { return other <= row && row < batch.end[size_t(other)]; };
    for (int t = begin; t < end; t++)
      for (int d = 1; d <= K; d++) {
        const int row = slot_row(n, end, K, t, d);
        CHECK(batch.token[size_t(row)] == 10 * (t + d));
        CHECK(batch.depth[size_t(row)] == t + d);
        for (int other = 0; other < n; other++) CHECK(sees(row, other) == (other <= t));
        for (int u = begin; u < end; u++)
          for (int e = 1; e <= K; e++) CHECK(sees(row, slot_row(n, end, K, u, e)) == (u == t && e <= d));
      }
    for (int t = 0; t < n; t++)
      for (int other = 0; other < batch.rows(); other++) CHECK(sees(t, other) == (other <= t));
  }
}

TEST_CASE("parallel: more segments are fewer rows and smaller arrays") {
  const ParallelSizes s = [] {
    ParallelSizes sizes = tiny_sizes(tiny_config(), false);
    sizes.ahead = 6;
    return sizes;
  }();
  for (int n : {32, 250, 1000}) {
    size_t last = SIZE_MAX;
    int last_rows = INT_MAX;
    for (int segments : {1, 2, 3, 6, 16, n}) {
      CAPTURE(n);
      CAPTURE(segments);
      const int rows = caterpillar_rows(n, s.slots(), segments);
      const ParallelActivations<float> a(s, n, rows, pad64(rows), true, 1);
      const Gradients<float> g{a, true};
      size_t numbers = 0;
      for (const Array<float>* array : std::initializer_list<const Array<float>*>{
               &a.features, &a.hidden, &a.input,  &a.x,      &a.norm_1, &a.rstd_1, &a.qkv,    &a.att,
               &a.log_sum,  &a.mid,    &a.norm_2, &a.rstd_2, &a.pre,    &a.act,    &a.norm_f, &a.k,
               &a.v,        &g.stream, &g.norm,   &g.branch, &g.att,    &g.qkv,    &g.k,      &g.v})
        numbers += array->size();
      int longest = 0;  // segment of the trainer
      for (int i = 0; i < segments; i++) longest = std::max(longest, n * (i + 1) / segments - n * i / segments);
      CHECK(rows == n + longest * 5);
      CHECK(rows < last_rows);
      CHECK(numbers < last);
      if (segments == 1) CHECK(rows == n * 6);
      if (segments == 6) CHECK(rows <= 2 * n);  // S = K: the slots at once are no more than the stream
      if (segments == n) CHECK(rows == n + 5);
      last = numbers, last_rows = rows;
    }
    CHECK(caterpillar_rows(n, s.slots(), 10 * n) == n + 5);  // more segments than positions
  }
}

TEST_CASE("parallel: a sequence is learned with its own tokens and features, whichever others come with it") {
  const Config config = tiny_config();
  const std::vector<float> target = some_weights(config, 2);
  Pool pool(1);
  const ParallelSizes s = tiny_sizes(config, false);
  const int n = 9, K = s.ahead;
  const Shard shard = some_shard(config, 3, n, K);
  ParallelTrainer<float> trainer(s, config, {config, target.data()}, n, 2, pool);
  trainer.set_weights(start_of<float>(s).data());
  const auto told = [&](const std::vector<int>& sequences) {
    std::vector<std::vector<float>> all;
    std::vector<int> guesses(size_t(K), 0);
    trainer.loss({shard, sequences.data(), int(sequences.size())},
                 [&](int k, int before, int token, const float* logits, float cost) {
                   const int number = guesses[size_t(k)]++;
                   const int32_t* const tokens = shard.tokens(sequences[size_t(number / n)]);
                   const int t = k == 0 ? number % n : segment_order(n, 2)[size_t(number % n)];
                   CHECK(before == tokens[t + 1 + k]);
                   CHECK(token == tokens[t + 2 + k]);
                   all.emplace_back(logits, logits + s.vocab_size);
                   all.back().push_back(cost);
                 });
    for (int count : guesses) CHECK(count == n * int(sequences.size()));
    return all;
  };
  std::vector<std::vector<float>> apart = told({2});
  for (const auto& guess : told({0})) apart.push_back(guess);
  CHECK(told({2, 0}) == apart);
  CHECK(told({0, 2}) != apart);
}

// ---------------------------------------------------------------------------------------------------------------
// The program

TEST_CASE("parallel: train_gpt --parallel leaves the model as it is, learns, and says how well") {
  const LearnedWorld& w = world();
  for (bool sequential : {false, true}) {
    CAPTURE(sequential);
    const Folder folder;
    const std::string dir = folder.file("model"), stats_file = folder.file("stats.json");
    std::filesystem::copy(w.dir, dir);
    const auto before = files_of(dir);
    Words more = {"--stats", stats_file, "--eval_interval", "50"};
    if (sequential) more.push_back("--parallel_sequential");
    CHECK(train(usual(dir, more)) == 0);
    auto after = files_of(dir);
    CHECK(after.erase("parallel.safetensors") == 1);
    CHECK(after.erase("parallel-optimizer.safetensors") == 1);
    CHECK(after == before);
    const ParallelSizes sizes = read_parallel(dir, w.config).sizes;
    CHECK(sizes.ahead == 4);
    CHECK(sizes.n_layer == 2);
    CHECK(sizes.n_kv_head == 2);
    CHECK(sizes.sequential == sequential);
    CHECK(!sizes.raw);

    const Json stats = parse_json(read_file(stats_file), "stats");
    const Json &curve = stats["curve"], &begin = curve.front(), &end = curve.back();
    CHECK(double(stats["hidden_seconds"]) > 0);
    REQUIRE(stats["accuracy"].size() == 4);
    REQUIRE(curve.size() == 3);
    CHECK(int(begin["iteration"]) == 0);
    CHECK(int(curve[1]["iteration"]) == 50);
    CHECK(end["iteration"] == stats["iterations"]);
    CHECK(double(end["loss"]) < 0.8 * double(begin["loss"]));
    const double first = stats["accuracy"][0][0], unigram = stats["accuracy_unigram"][0],
                 bigram = stats["accuracy_bigram"][0];
    INFO("right at once: " << first << ", bigram " << bigram << ", unigram " << unigram);
    CHECK(bigram > unigram);
    CHECK(first > bigram + 0.1);
    for (size_t k = 0; k < 4; k++) {
      CHECK(end["accuracy"][k] == stats["accuracy"][k][0]);
      CHECK(double(stats["accuracy"][k][0]) > double(begin["accuracy"][k]));
      if (k < 2) CHECK(double(stats["accuracy"][k][0]) > unigram + 0.05);
    }
    CHECK(double(stats["accuracy"][0][0]) > double(stats["accuracy"][3][0]));  // further ahead is harder
  }
}

TEST_CASE("parallel: a run that was resumed, or has other threads, is the same to the byte; segments, nearly") {
  const LearnedWorld& w = world();
  for (bool sequential : {false, true}) {
    CAPTURE(sequential);
    const Folder folder;
    const std::string dir = folder.file("model");
    std::filesystem::copy(w.dir, dir);
    const auto run = [&](const std::string& out, Words more) {
      more.insert(more.begin(), {"--out", folder.file(out), "--min_lr", "1e-2", "--warmup_iters", "0"});
      if (sequential) more.push_back("--parallel_sequential");
      CHECK(train(usual(dir, more)) == 0);
      return files_of(folder.file(out));
    };
    const auto whole = run("whole", {"--max_iters", "12"});
    CHECK(whole.size() == 2);
    run("parts", {"--max_iters", "5"});
    CHECK(files_of(folder.file("parts")) != whole);
    CHECK(run("parts", {"--max_iters", "12", "--resume", "--threads", "3"}) == whole);
    const auto refused = [&](const Words& other, const std::string& why) {
      Words words = {"--out", folder.file("parts"), "--max_iters", "20", "--resume"};
      if (sequential) words.push_back("--parallel_sequential");
      words.insert(words.end(), other.begin(), other.end());
      const std::string line = error_of([&] { train(usual(dir, words)); });
      CAPTURE(line);
      CHECK(holds(line, why));
    };
    refused({"--parallel_layers", "1"}, "had n_layer 2, this one has 1");
    refused({"--parallel_kv_heads", "1"}, "had kv_heads 2, this one has 1");
    refused({"--parallel_ahead", "3"}, "had ahead 4, this one has 3");
    refused({"--parallel_raw"}, "had raw no, this one has yes");
    if (!sequential) refused({"--parallel_sequential"}, "had sequential no, this one has yes");
    CHECK(files_of(folder.file("parts")) == whole);

    // Segments add up the same gradient in another order, and Adam divides it by its own size: weights whose gradient
    // is all rounding go elsewhere, the others do not.
    run("segments", {"--max_iters", "12", "--parallel_segments", "7"});
    const std::vector<float> one = read_parallel(folder.file("whole"), w.config).weights,
                             seven = read_parallel(folder.file("segments"), w.config).weights;
    const ParallelSizes sizes = read_parallel(folder.file("whole"), w.config).sizes;
    const std::vector<float> start = initial_weights(parallel_table(sizes), 1337);
    REQUIRE(one.size() == seven.size());
    double apart = 0, moved = 0;
    for (size_t i = 0; i < one.size(); i++)
      apart += std::pow(double(one[i] - seven[i]), 2), moved += std::pow(double(one[i] - start[i]), 2);
    INFO("segments apart " << std::sqrt(apart / moved) << " of the way");
    CHECK(one != seven);
    CHECK(std::sqrt(apart) < 1e-2 * std::sqrt(moved));
  }
}

TEST_CASE("parallel: shards are read again, refused where they are broken, made again for other settings") {
  const Folder folder;
  const std::string dir = folder.file("model"), stats_file = folder.file("stats.json");
  std::filesystem::copy(world().dir, dir);
  const auto seconds = [&](const Words& more) {
    Words words = {"--max_iters", "1", "--parallel_tokens", "600", "--overwrite", "--stats", stats_file};
    words.insert(words.end(), more.begin(), more.end());
    const int status = train(usual(dir, words));  // what it raises is for the caller
    CHECK(status == 0);
    return double(parse_json(read_file(stats_file), "stats")["hidden_seconds"]);
  };
  CHECK(seconds({}) > 0);
  CHECK(seconds({"--parallel_sequential", "--parallel_ahead", "2"}) == 0);  // the same features
  const std::string path = dir + "/features/train-0.safetensors";
  std::string bytes = read_file(path);
  bytes.back() = char(bytes.back() ^ 1);
  write_file(path, bytes);
  CHECK(holds(error_of([&] { seconds({}); }), "not the bytes that were written: " + path));
  unlink(path.c_str());
  CHECK(seconds({}) > 0);
  CHECK(seconds({}) == 0);
  const std::string known = read_file(path);
  CHECK(seconds({"--seed", "3"}) > 0);
  CHECK(read_file(path) != known);
  CHECK(seconds({"--parallel_target", "text"}) > 0);
}

TEST_CASE("parallel: train_gpt --parallel refuses what it cannot use, in a line") {
  const LearnedWorld& w = world();
  const Folder folder;
  const auto line = [&](const std::string& dir, const Words& more) {
    const std::string text = message_of([&] { train(usual(dir, more)); });
    CHECK(!text.empty());
    CHECK(text.find('\n') == std::string::npos);
    return text;
  };
  CHECK(holds(error_of([&] { train({"--parallel", folder.path, "--data", w.data}); }), "config.json"));
  CHECK(holds(line(w.dir, {"--parallel_kv_heads", "3"}), "2 heads do not share 3: --parallel_kv_heads"));
  CHECK(holds(line(w.dir, {"--parallel_kv_heads", "4"}), "2 heads do not share 4: --parallel_kv_heads"));
  CHECK(holds(line(w.dir, {"--parallel_layers", "5"}), "out of range"));
  CHECK(holds(line(w.dir, {"--parallel_ahead", "17"}), "out of range"));
  CHECK(holds(line(w.dir, {"--parallel_target", "distribution"}), "--parallel_target"));
  const auto other_model = [&](const char* name, int block_size, int channels) {
    Config config = w.config;
    config.block_size = block_size, config.n_embd = channels;
    save_model(folder.file(name), config, w.tokenizer, initial_weights(config, 1).data());
    return folder.file(name);
  };
  const std::string small = other_model("small", 16, 24), odd = other_model("odd", 32, 6);
  const Words text = {"--parallel_target", "text", "--max_iters", "1"};
  const auto ahead = [&](const char* tokens) {
    Words words = text;
    words.insert(words.end(), {"--parallel_ahead", tokens});
    return words;
  };
  CHECK(holds(line(small, ahead("15")), "15 tokens at once look beyond the model's window of 16 tokens"));
  CHECK(holds(line(small, ahead("16")), "16 tokens at once look beyond the model's window of 16 tokens"));
  CHECK(holds(line(odd, text), "odd number of channels, 3"));
  for (const std::string& dir : {w.dir, small, odd}) CHECK(!std::filesystem::exists(dir + "/features"));
  CHECK(train(usual(small, ahead("14"))) == 0);  // two positions
}
