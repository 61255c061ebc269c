// training/shards.h: what the target computes of texts, on disk, for drafters that are trained on its states.
//
// In order: a shard, sequences of tokens with the target's state at each, and its file; recording a sequence, of a
// given text or of one that the target generates itself; the folder of shards. The target runs once over each token.
// Every shard is a pure function of the settings and its number, and the folder's index knows its SHA-256: a run that
// was stopped goes on, one that is repeated reads what is there, and whoever reads a shard checks it first.
#pragma once

#include "files/checkpoint.h"
#include "watch/decoding.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A shard

// What a state is: the last hidden one, (C) after the final norm, as the target's own head sees it; or what an early, a
// middle and the last layer left, (3C), unnormalized: drafters/features.h. Of the latter, examples are single places of
// what the model said, passages some one after the other (lessons.h), both in bf16 in their file.
enum class Recorded { kHidden, kFeatures, kExamples, kPassages };
inline std::string word_of(Recorded what) {
  const char* const words[] = {"hidden", "features", "examples", "passages"};
  return words[int(what)];
}
inline bool is_said(Recorded what) { return what == Recorded::kExamples || what == Recorded::kPassages; }
inline std::string name_of(Recorded what) { return what == Recorded::kHidden ? "hidden states" : word_of(what); }

struct ShardSizes {
  int sequences = 0, rows = 0, channels = 0;  // S, L, and C or 3C
  Recorded what = Recorded::kHidden;
  int after = 1;                                             // A, how many tokens of a sequence follow its last row's
  int tokens() const { return sequences * (rows + after); }  // of a shard
};

// Row l of a sequence is where the target saw token l and was to say token l + 1.
struct Shard {
  ShardSizes sizes;
  std::vector<int32_t> token = {};  // (S, L + A)
  std::vector<float> states = {};   // (S, L, channels)

  const float* state(int sequence, int row) const {
    return states.data() + (size_t(sequence) * size_t(sizes.rows) + size_t(row)) * size_t(sizes.channels);
  }
  const int32_t* tokens(int sequence) const {
    return token.data() + size_t(sequence) * size_t(sizes.rows + sizes.after);
  }
};
// Of a sequence of L rows, those whose tokens ahead are all known.
inline int usable_rows(const ShardSizes& sizes, int ahead) { return sizes.rows + sizes.after - 1 - ahead; }
// Into how many pieces a shard is taken apart: of hidden states into such rows, else into whole sequences.
inline int pieces_of(const ShardSizes& sizes, int ahead) {
  return sizes.sequences * (sizes.what == Recorded::kHidden ? usable_rows(sizes, ahead) : 1);
}
// Of its file, nearly.
inline double bytes_of(const ShardSizes& s) {
  const double state = is_said(s.what) ? sizeof(bf16) : sizeof(float);
  return double(s.sequences) * s.rows * s.channels * state + double(s.tokens()) * sizeof(int32_t);
}
// Sequences that validate are numbered from here on.
constexpr uint32_t kValidation = 1u << 30;
// Some pieces of a shard.
struct Examples {
  const Shard& shard;
  const int* pieces;  // (n) in [0, pieces_of(shard.sizes, ahead))
  int n;
};

inline std::string format_shard(const Shard& shard) {
  const ShardSizes& s = shard.sizes;
  TensorData states = {word_of(s.what), {s.sequences, s.rows, s.channels}, shard.states.data()};
  std::vector<bf16> rounded(is_said(s.what) ? shard.states.size() : 0);
  std::transform(shard.states.begin(), shard.states.begin() + long(rounded.size()), rounded.begin(), to_bf16);
  if (!rounded.empty()) {
    states.data = rounded.data();
    states.dtype = "BF16";
  }
  return format_safetensors({{"token", {int64_t(shard.token.size())}, shard.token.data(), "I32"}, states},
                            {{"format", "pt"}});
}

// Throws runtime_error unless it is a shard of these sizes over tokens in [0, vocab).
inline Shard parse_shard(std::string bytes, const ShardSizes& sizes, int vocab, const std::string& where) {
  const SafeTensors file = parse_safetensors(std::move(bytes), where);
  Shard shard = {sizes};
  shard.token = read_integers(file, "token", where);
  shard.states = read_tensor(file, word_of(sizes.what), {sizes.sequences, sizes.rows, sizes.channels}, where);
  bool fits = shard.token.size() == size_t(sizes.tokens());
  for (int32_t token : shard.token) fits = fits && token >= 0 && token < vocab;
  if (!fits)
    refuse(filled("not the {} of this model", name_of(sizes.what)), where, "remove the file: it is made again");
  return shard;
}

// ---------------------------------------------------------------------------------------------------------------
// Recording a sequence

// Appends the i-th sequence to a shard.
using RecordSequence = std::function<void(uint32_t i, Shard& shard)>;

// Appends what is recorded of a row of the target's last forward.
inline void record_state(const Target& target, int row, Recorded what, std::vector<float>& states) {
  const auto append = [&](const float* state) { states.insert(states.end(), state, state + target.config().n_embd); };
  if (what == Recorded::kHidden) return append(target.hidden(row));
  for (int layer : feature_layers(target.config().n_layer)) append(target.state(layer, row));
}

// Appends the L rows of a given text: tokens (L + 1), L at most the target's window.
inline void record_text(Target& target, const int* tokens, Shard& shard) {
  const int L = shard.sizes.rows;
  Batch chain;
  chain.add_chain(tokens, L, 0, 0);
  target.prefill(nullptr, 0);
  target.forward(tokens, chain.depth.data(), chain.end.data(), L);
  shard.token.insert(shard.token.end(), tokens, tokens + L + 1);
  for (int l = 0; l < L; l++) record_state(target, l, shard.sizes.what, shard.states);
}

// Appends L rows that the target generates after a prompt. The text is that of plain decoding, whatever drafter speeds
// it up, and the states are those of the accepted rows: the target runs for nothing else.
inline void record_generated(Target& target, Drafter* drafter, Decoding decoding, std::vector<int> prompt,
                             Shard& shard) {
  decoding.max_new_tokens = shard.sizes.rows;
  decoding.on_iteration = [&](const IterationReport& report) {
    for (int i = 0; i < report.emitted; i++)
      record_state(target, report.verdict.rows[size_t(i)], shard.sizes.what, shard.states);
  };
  shard.token.push_back(prompt.back());
  generate(target, drafter, decoding, prompt, [&](int token) {
    shard.token.push_back(token);
    return true;
  });
}

// ---------------------------------------------------------------------------------------------------------------
// The folder

// Shards by name and index.json, which holds what they are of and their checksums.
class Recordings {
 public:
  // settings: what the shards follow from. Shards of other settings are removed. Throws runtime_error.
  Recordings(const std::string& dir, const Metadata& settings, const ShardSizes& sizes, int vocab)
      : dir_(dir), sizes_(sizes), vocab_(vocab) {
    create_folder(dir);
    Json wanted = settings;
    Json its = {sizes.sequences, sizes.rows, sizes.channels};
    if (sizes.after != 1) its.push_back(sizes.after);
    wanted["shard"] = its.dump();
    const std::string path = dir + "/index.json";
    if (std::filesystem::exists(path)) index_ = parse_json(read_file(path), path);
    if (!index_.is_object() || !member(index_, "shards").is_object()) index_ = Json::object();
    if (member(index_, "settings") != wanted) {
      for (const auto& entry : member(index_, "shards").items()) unlink(file_of(entry.key()).c_str());
      index_ = {{"settings", wanted}, {"shards", Json::object()}};
    }
  }
  bool has(const std::string& name) const {
    return member(index_, "shards").contains(name) && std::filesystem::exists(file_of(name));
  }
  void write(const std::string& name, const Shard& shard) {
    const std::string bytes = format_shard(shard);
    write_file(file_of(name), bytes);
    index_["shards"][name] = sha256(bytes);
    write_file(dir_ + "/index.json", index_.dump(2) + "\n");
  }
  // Throws runtime_error where the file is not the one that was written.
  Shard read(const std::string& name) const {
    const std::string path = file_of(name);
    std::string bytes = read_file(path);
    if (Json(sha256(bytes)) != member(member(index_, "shards"), name))
      refuse("not the bytes that were written", path, "remove the file: it is made again");
    return parse_shard(std::move(bytes), sizes_, vocab_, path);
  }
  double bytes() const {
    double sum = 0;
    for (const auto& entry : member(index_, "shards").items())
      if (has(entry.key())) sum += double(std::filesystem::file_size(file_of(entry.key())));
    return sum;
  }

 private:
  // A name is a plain word, whatever an index says.
  std::string file_of(const std::string& name) const {
    if (name.find('/') != std::string::npos) refuse("a shard's name with a slash", dir_ + "/index.json", "remove it");
    return dir_ + "/" + name + ".safetensors";
  }
  std::string dir_;
  ShardSizes sizes_;
  int vocab_;
  Json index_;
};

}  // namespace nanospec
