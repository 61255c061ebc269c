// files/advice.h: how to sample from a model where nobody says how: as its authors advise.
//
// A folder of transformers has their advice in generation_config.json, a GGUF file under llama.cpp's keys
// general.sampling.temp, top_k, top_p and penalty_repeat. What one of them leaves out is off, as if it were 1 or 0.
// Where they say nothing, it is what most chats use. A model of train_gpt is sampled as it is: temperature 1.
#pragma once

#include "files/checkpoint.h"
#include "files/gguf.h"
#include "files/model_path.h"
#include "files/origin.h"
#include "sample.h"

namespace nanospec {

struct Advice {
  Sampling sampling;         // its temperature, top_k, top_p and repetition_penalty
  std::string from;          // the file that says so; "": none does
  bool its_own_way = false;  // a model of train_gpt; or none, and loading it will throw
};

constexpr double kColdest = 1e-6, kHottest = 1e6;  // between them logits / temperature stay in a float's range
constexpr double kMostTopK = 2147483647;
constexpr double kLeastRepetition = 0.01, kMostRepetition = 100;

// What a file says of each, where it says something; where of none, temperature 0.7 and top_p 0.95. Throws
// runtime_error where it cannot be sampled so.
using Advised = std::optional<double>;
inline Advice said_advice(Advised its_temperature, Advised its_top_k, Advised its_top_p, Advised its_penalty,
                          const std::string& file) {
  if (!its_temperature && !its_top_k && !its_top_p && !its_penalty) return {{0.7f, 0, 0.95f}, ""};
  const double temperature = its_temperature.value_or(1), top_k = its_top_k.value_or(0), top_p = its_top_p.value_or(1),
               penalty = its_penalty.value_or(1);
  const bool warm = temperature >= kColdest && temperature <= kHottest;
  const bool mild = penalty >= kLeastRepetition && penalty <= kMostRepetition;
  if (!(temperature == 0 || warm) || top_k > kMostTopK || !(top_p > 0) || !mild)
    refuse("it advises a sampling that is none: temperature " + shown(temperature) + ", top_k " + shown(top_k) +
               ", top_p " + shown(top_p) + ", repetition_penalty " + shown(penalty),
           file, "mend it there");
  Sampling sampling = {float(temperature), int(std::max(0.0, top_k)), std::min(1.0f, float(top_p))};  // top_k -1: off
  sampling.repetition_penalty = float(penalty);
  return {sampling, file};
}

inline Advice gguf_advice(const GgufFile& file) {
  const std::string keys = "general.sampling.";
  const auto number = [&](const char* name) {
    return file.has(keys + name) ? Advised(file.number(keys + name)) : Advised();
  };
  if (file.has(keys + "top_k")) file.integer(keys + "top_k", -1, int64_t(kMostTopK));  // or it throws
  return said_advice(number("temp"), number("top_k"), number("top_p"), number("penalty_repeat"), file.path);
}

// Of a folder with weights that are not train_gpt's. "do_sample": false is temperature 0.
inline Advice folder_advice(const std::string& path) {
  const Json json = std::filesystem::is_regular_file(path) ? parse_json(read_file(path), path) : Json();
  const auto number = [&](const char* name) {
    const Json& value = member(json, name);
    if (!value.is_null() && !value.is_number())
      refuse("\"" + std::string(name) + "\" is " + shown(value) + ", expected a number", path, "mend it there");
    return value.is_null() ? Advised() : Advised(value.get<double>());
  };
  const Advised penalty = number("repetition_penalty");
  if (member(json, "do_sample") == false) return said_advice(0, {}, {}, penalty, path);
  return said_advice(number("temperature"), number("top_k"), number("top_p"), penalty, path);
}

// Of a model's folder or GGUF file. Throws runtime_error where what is there cannot be read.
inline Advice advice_of(const std::string& model) {
  const bool gguf = is_gguf(model);
  const bool there = std::filesystem::is_regular_file(gguf ? model : weights_path(model));
  if (there && gguf) return gguf_advice(read_gguf(model));
  const bool its_own_way = !there || model_metadata(model).count("hash") || !load_tokenizer(model).bpe;
  return its_own_way ? Advice{{}, "", true} : folder_advice(model + "/generation_config.json");
}

}  // namespace nanospec
