// tests/training/test_train_drafter.cpp: what trainings of drafters share: features on disk, the order of what is
// learned,
// --resume; and how train_gpt hands over. Shards of hidden states, and whole trainings on them, are in
// tests/drafters/test_medusa.cpp.
#include <doctest/doctest.h>

#include <set>

#include "tests/error_of.h"
#include "tests/mock.h"
#include "tests/world.h"
#include "training/train_gpt.h"
#include "training/train_medusa.h"
#include "training/train_parallel.h"

using namespace nanospec;

namespace {

// Hands on each forward's features, and drafts with another.
struct Hearing : StandIn {
  std::vector<float> heard;  // of the rows of all forwards, in their order

  explicit Hearing(Drafter& other) : StandIn(other) {}
  const TargetRows* rows = nullptr;
  void attach(const TargetRows* its) override { rows = its; }
  void begin(const int* text, int n) override { heard.clear(), StandIn::begin(text, n); }
  void committed(const Commit& commit) override {
    for (int i = 0; i < commit.n; i++)
      heard.insert(heard.end(), rows->features(commit.rows[i]),
                   rows->features(commit.rows[i]) + kFeatures * world().config.n_embd);
    drafter.committed(commit);
  }
};

int train(std::vector<std::string> words) {
  words.insert(words.begin(),
               {"train_drafter", "--data", world().data, "--quiet", "--medusa_tokens", "3000", "--batch_size", "100",
                "--learning_rate", "1e-2", "--min_lr", "1e-2", "--medusa_heads", "2", "--warmup_iters", "0"});
  MedusaOptions options;
  return train_drafter(options, int(words.size()), arguments(words).data());
}

}  // namespace

TEST_CASE(
    "train_drafter: shards of features are those of plain decoding, whatever drafter sped it up, and it hears the "
    "same") {
  const LearnedWorld& w = world();
  const int L = 70, W = kFeatures * w.config.n_embd;  // past the window
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 2, 17);
  Decoding decoding;
  decoding.shape = parse_shape("best-first", 8);
  decoding.sampling.temperature = 0.8f;
  const std::vector<int> prompt = w.tokenizer.encode("the king");
  const std::unique_ptr<Drafter> ngram = load_drafter("ngram:4", w.dir, w.config.vocab_size);
  Hearing hearing(*ngram);
  Shard plain, fast;
  plain.sizes = fast.sizes = {1, L, W, Recorded::kFeatures};
  record_generated(target, nullptr, decoding, prompt, plain);
  record_generated(target, &hearing, decoding, prompt, fast);
  CHECK(plain.states.size() == size_t(L * W));
  CHECK(plain.token == fast.token);
  CHECK(plain.states == fast.states);
  CHECK(hearing.heard.size() >= size_t((L - 9) * W));  // all but the last forward's
  CHECK(hearing.heard.size() < plain.states.size());
  CHECK(std::equal(hearing.heard.begin(), hearing.heard.end(), plain.states.begin()));

  Shard given;
  given.sizes = {1, 20, W, Recorded::kFeatures};
  record_text(target, plain.token.data(), given);
  target.prefill(plain.token.data(), 11);
  const int depth = 0, end = 1;
  target.forward(plain.token.data() + 11, &depth, &end, 1);
  CHECK(memcmp(Features(target).row(0), given.state(0, 11), size_t(W) * 4) == 0);
}

TEST_CASE("train_drafter: a folder of features is no folder of hidden states, and knows the layers") {
  const Folder folder;
  const ShardSizes sizes = {1, 2, 3, Recorded::kFeatures};
  Shard shard;
  shard.sizes = sizes, shard.token = {1, 2, 3}, shard.states = {1, 2, 3, 4, 5, 6};
  const std::map<std::string, std::string> settings = {{"layers", "1,2,4"}};
  Recordings(folder.path, settings, sizes, 5).write("train-0", shard);
  CHECK(Recordings(folder.path, settings, sizes, 5).read("train-0").states == shard.states);
  CHECK(holds(error_of([&] { Recordings(folder.path, settings, {1, 2, 3}, 5).read("train-0"); }), "hidden is missing"));
  CHECK(!Recordings(folder.path, {{"layers", "1,2,3"}}, sizes, 5).has("train-0"));

  const LearnedWorld& w = world();
  ParallelOptions o;  // learns from features
  o.dir = folder.file("model"), o.data = w.data, o.tokens = 700, o.target = "text", o.quiet = true, o.threads = 1;
  std::filesystem::copy(w.dir, o.dir);
  const DrafterRun run = open_run(o);
  CHECK(run.sizes.channels == kFeatures * w.config.n_embd);
  CHECK(run.text.settings.at("layers") == "1,1,2");
  MedusaOptions medusa;
  medusa.dir = o.dir, medusa.data = o.data, medusa.quiet = true;
  CHECK(open_run(medusa).text.settings.count("layers") == 0);
  Recordings states(run.folder(), run.text.settings, run.sizes, w.config.vocab_size);
  CHECK(make_shards(run, states) > 0);
  CHECK(make_shards(run, states) == 0);
  CHECK(std::filesystem::exists(o.dir + "/features/validation-0.safetensors"));
  const Shard first = states.read("train-0");
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 1, 9);
  Shard again;
  again.sizes = {1, run.sizes.rows, run.sizes.channels, Recorded::kFeatures};
  record_text(target, first.tokens(3), again);
  CHECK(std::equal(again.states.begin(), again.states.end(), first.state(3, 0)));
}

TEST_CASE(
    "train_drafter: the order of what is learned: all of it in every epoch, and a function of the iteration alone") {
  const Folder folder;
  constexpr int kShards = 3, kPieces = 10;
  Recordings states(folder.path, {}, {1, 1, 1}, 9);
  for (int i = 0; i < kShards; i++) {
    Shard shard;
    shard.sizes = {1, 1, 1}, shard.token = {i, i}, shard.states = {0};
    states.write("train-" + std::to_string(i), shard);
  }
  struct Seen {
    int shard;
    std::vector<int> pieces;
    bool operator==(const Seen& other) const { return shard == other.shard && pieces == other.pieces; }
  };
  const auto seen = [](ShardOrder& order, int64_t iteration) {
    const Examples some = order.batch(iteration);
    return Seen{some.shard.token[0], {some.pieces, some.pieces + some.n}};
  };
  for (int batch_size : {1, 3, 5, 10, 64}) {
    CAPTURE(batch_size);
    const int n = std::min(batch_size, kPieces), each = kPieces / n;
    ShardOrder order(states, kShards, kPieces, batch_size, 7), other(states, kShards, kPieces, batch_size, 8);
    std::vector<Seen> all;
    int same = 0;
    for (int i = 0; i < 4 * kShards * each; i++) all.push_back(seen(order, i)), same += all.back() == seen(other, i);
    CHECK(same < int(all.size()) / 2);
    for (int epoch = 0; epoch < 4; epoch++) {
      std::set<std::pair<int, int>> met;
      for (int i = 0; i < kShards * each; i++) {
        const Seen& now = all[size_t(epoch * kShards * each + i)];
        CHECK(int(now.pieces.size()) == n);
        for (int piece : now.pieces) met.insert({now.shard, piece});
        CHECK(now.shard == all[size_t(epoch * kShards * each + i - i % each)].shard);  // one shard at a time
      }
      CHECK(met.size() == size_t(kShards * each * n));
    }
    for (int i : {0, each, 2 * kShards * each + 1, 4 * kShards * each - 1, 1}) {  // forward, and back
      ShardOrder late(states, kShards, kPieces, batch_size, 7);
      CHECK(seen(late, i) == all[size_t(i)]);
      CHECK(seen(order, i) == all[size_t(i)]);
    }
    std::set<std::vector<int>> shards, pieces;  // in how many orders the shards come, and the first one's pieces
    for (int epoch = 0; epoch < 4; epoch++) {
      std::vector<int> met, of_first;
      for (int i = epoch * kShards * each; i < (epoch + 1) * kShards * each; i++) {
        if (i % each == 0) met.push_back(all[size_t(i)].shard);
        if (all[size_t(i)].shard == 0)
          of_first.insert(of_first.end(), all[size_t(i)].pieces.begin(), all[size_t(i)].pieces.end());
      }
      shards.insert(met), pieces.insert(of_first);
    }
    CHECK(shards.size() > 1);
    CHECK(pieces.size() == 4);
  }
}

TEST_CASE("train_drafter: a training that goes on gives the bytes of one that was never stopped") {
  const LearnedWorld& w = world();
  const Folder folder;
  const std::string dir = folder.file("model"), heads = "/medusa.safetensors", state = "/medusa-optimizer.safetensors";
  std::filesystem::copy(w.dir, dir);
  const std::string whole = folder.file("whole"), parts = folder.file("parts");
  CHECK(train({"--medusa", dir, "--out", whole, "--max_iters", "90"}) == 0);
  CHECK(train({"--medusa", dir, "--out", parts, "--max_iters", "37"}) == 0);
  CHECK(read_file(parts + heads) != read_file(whole + heads));
  const auto stopped = files_of(parts);
  unlink((parts + heads).c_str());  // the state alone is enough
  CHECK(train({"--medusa", dir, "--out", parts, "--max_iters", "90", "--resume", "--threads", "3"}) == 0);
  CHECK(read_file(parts + heads) == read_file(whole + heads));
  CHECK(read_file(parts + state) == read_file(whole + state));
  const auto done = files_of(parts), hidden = files_of(dir + "/hidden");
  CHECK(train({"--medusa", dir, "--out", parts, "--max_iters", "90", "--resume"}) == 0);  // nothing is left to do
  CHECK(files_of(parts) == done);

  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    CAPTURE(why);
    std::vector<std::string> words = {"--medusa", dir, "--out", parts, "--max_iters", "120", "--resume"};
    words.insert(words.end(), more.begin(), more.end());
    CHECK(holds(error_of([&] { train(words); }), why));
    CHECK(files_of(parts) == done);
    CHECK(files_of(dir + "/hidden") == hidden);  // that of other settings would have replaced these
  };
  refused({"--seed", "5"}, "the run to resume had seed 1337, this one has 5: " + parts + state + ": give the same");
  refused({"--medusa_heads", "3"}, "had heads 2, this one has 3");
  refused({"--medusa_rank", "0"}, "had rank -1, this one has 0");
  refused({"--medusa_root"}, "had root 0, this one has 1");
  refused({"--batch_size", "99"}, "had batch_size 100, this one has 99");
  refused({"--medusa_target", "distribution"}, "had target self, this one has distribution");
  refused({"--medusa_tokens", "3001"}, "had tokens 3000, this one has 3001");
  write_file(parts + state, stopped.at("medusa-optimizer.safetensors").substr(0, 5000));
  CHECK(holds(error_of([&] { train({"--medusa", dir, "--out", parts, "--resume"}); }), "but the file holds"));
  unlink((parts + state).c_str());
  CHECK(holds(error_of([&] {
                train({"--medusa", dir, "--out", parts, "--resume"});
              }),
              "there is no run to resume: " + parts + state + ": start anew with --overwrite"));
}

TEST_CASE(
    "train_drafter: what was trained is written over only when that is asked for, and by one training at a time") {
  const LearnedWorld& w = world();
  const Folder folder;
  const std::string dir = folder.file("model");
  std::filesystem::copy(w.dir, dir);
  const auto refused = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--medusa", dir, "--max_iters", "3"});
    const auto before = files_of(dir), hidden = files_of(dir + "/hidden");
    const std::string line = error_of([&] { train(more); });
    CHECK(files_of(dir) == before);
    CHECK(files_of(dir + "/hidden") == hidden);
    return line;
  };
  CHECK(train({"--medusa", dir, "--max_iters", "3"}) == 0);  // a model is there, and no heads
  CHECK(refused({}) == "a training has written here: " + dir + " (medusa.safetensors, medusa-optimizer.safetensors): " +
                           "--resume goes on with it; start anew with --overwrite, or give another --out");
  CHECK(holds(refused({"--seed", "5"}), "a training has written here: "));
  const std::string before = read_file(dir + "/medusa.safetensors");
  CHECK(train({"--medusa", dir, "--max_iters", "4", "--overwrite"}) == 0);
  CHECK(read_file(dir + "/medusa.safetensors") != before);
  CHECK(read_file(dir + "/model.safetensors") == read_file(w.dir + "/model.safetensors"));
  unlink((dir + "/medusa-optimizer.safetensors").c_str());
  CHECK(holds(refused({}), " (medusa.safetensors): start anew with --overwrite, or give another --out"));

  // Another training in the folder, whatever it trains; or elsewhere on the same states.
  const std::string ours = " (process " + std::to_string(getpid()) + ")";
  {
    const LockedFolder other(dir, "");
    CHECK(refused({"--overwrite"}) ==
          "another process writes into the folder: " + dir + ours + ": wait for its end, or give another --out");
  }
  {
    const LockedFolder other(dir + "/hidden", "");
    CHECK(refused({"--out", folder.file("elsewhere")}) ==
          "another process writes into the folder: " + dir + "/hidden" + ours + ": wait for its end");
    CHECK(!std::filesystem::exists(folder.file("elsewhere")));
  }
  CHECK(train({"--medusa", dir, "--max_iters", "3", "--out", folder.file("elsewhere")}) == 0);
}

TEST_CASE("train_drafter: train_gpt hands drafters over to train_drafter, and says in a line where that is missing") {
  const auto handed = [](std::vector<std::string> words) {
    words.insert(words.begin(), "train_gpt");
    std::vector<char*> argv = arguments(words);
    argv.push_back(nullptr);
    GptOptions o;
    const std::string line = error_of([&] { read_flags(int(words.size()), argv.data(), o); });
    CHECK(line.find('\n') == std::string::npos);
    return line;
  };
  CHECK(handed({"--data", "medusa", "--out", "parallel"}).empty());
  const std::vector<std::vector<std::string>> drafters = {
      {"--medusa", "x"}, {"--medusa=x"}, {"--quiet", "--parallel", "--help"}, {"--hydra", "x"}};
  for (const auto& words : drafters) {  // nothing of that name lies beside the tests
    CHECK(holds(handed(words), "cannot start train_drafter: "));
    CHECK(holds(handed(words), "/train_drafter (No such file or directory): build it with make"));
  }
}
