// commands/loading.h: a model of either kind, loaded with a progress line: a folder of train_gpt, or a GGUF file.
#pragma once

#include "commands/cli.h"
#include "commands/engine.h"
#include "files/gguf_model.h"

namespace nanospec {

// The type of most weights, as the model has them.
inline Dtype stored_as(const Loaded& loaded) {
  const TensorSource source = loaded.source();
  std::map<Dtype, size_t> numbers;
  for (const TensorSpec& spec : tensor_table(loaded.config)) numbers[source.type(spec)] += spec.size;
  return std::max_element(numbers.begin(), numbers.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
}

// The same model of a file that stays mapped: its tensors are read as before, but it tells how far that is where it
// takes longer than a second.
inline Loaded show_loading(Loaded loaded, const Settings& s) {
  const auto progress = std::make_shared<Progress>(s.quiet, 1);
  const auto done = std::make_shared<double>(0);
  const double all = double(parameter_count(loaded.config));
  const auto counted = [=, model = printable(s.model, 60)](const auto& f) {
    return [=](const TensorSpec& spec, const auto& to) {
      f(spec, to);
      *done += double(spec.size);
      if (progress->due())
        progress->show(filled("loading {}: {}%, {} million weights/s, {}", model, decimals(100 * *done / all, 0),
                              thousands(*done / progress->seconds() / 1e6), progress->left(*done, all)));
    };
  };
  loaded.tensors.read = counted(loaded.tensors.read);
  loaded.tensors.blocks = counted(loaded.tensors.blocks);
  return loaded;
}

// dtype, cache_dtype: how weights, keys and values will be stored. Throws what load_gguf and load_model throw, and
// runtime_error where the context cannot be the one that is wanted.
inline Loaded load(const Settings& s, Dtype dtype, Dtype cache_dtype) {
  if (is_gguf(s.model)) return show_loading(load_gguf(read_gguf(s.model), s.context, dtype, cache_dtype), s);
  Loaded loaded = load_model(s.model);
  const int block = loaded.config.block_size;
  if (s.context != 0 && s.context != block)
    refuse(filled("a context of {} tokens is not the {} that the model was trained with", s.context, block),
           printable(s.model, 300), "leave --context out");
  return loaded;
}

}  // namespace nanospec
