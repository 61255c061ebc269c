// files/origin.h: where a file comes from, as its metadata say it: "text" and "text_sha256", the text that was learned
// or counted; "model", the hash of the weights that it was made with.
//
// What does not fit the model makes drafts worse, never a text wrong: so it is said (note, text.h) and used. A file
// that says nothing is used in silence.
#pragma once

#include <filesystem>
#include <string>

#include "files/checkpoint.h"

namespace nanospec {

// The text at this path, of this SHA-256. It has no name where it came through a pipe.
inline Metadata text_origin(const std::string& path, const std::string& sha256) {
  Metadata origin = {{"text_sha256", sha256}};
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path, error);  // the name, not that of a link to it
  if (std::filesystem::is_regular_file(file, error)) origin["text"] = printable(file.filename().string());
  return origin;
}

inline std::string said_by(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

// What the model in `dir` says; nothing where it cannot be read, for whoever loads it tells why.
inline Metadata model_metadata(const std::string& dir) {
  try {
    return read_header(dir + "/model.safetensors").metadata;
  } catch (const std::runtime_error&) { return {}; }
}

// What its weights are known by, also where they carry no hash; "" where there are none.
inline std::string model_hash(const std::string& dir) {
  const std::string hash = said_by(model_metadata(dir), "hash"), path = dir + "/model.safetensors";
  return !hash.empty() || !std::filesystem::exists(path) ? hash : hash_of(read_file(path));
}

// "text, NAME": of either part what is known.
inline std::string named_text(const Metadata& metadata, const std::string& before) {
  const std::string name = said_by(metadata, "text");
  return before + (name.empty() ? "" : ", " + printable(name));
}

// Says where the file at `path` was made with another model than that in `dir`, or of another text. made: "the heads
// were trained".
inline void check_origin(const Metadata& file, const std::string& made, const std::string& path, const std::string& dir,
                         const std::string& advice) {
  const Metadata model = model_metadata(dir);
  const std::string text = said_by(file, "text_sha256"), its_text = said_by(model, "text_sha256"),
                    with = said_by(file, "model"), its_hash = with.empty() ? "" : model_hash(dir);
  if (!its_hash.empty() && with != its_hash)
    note(made + " with another model than this one", printable(path, 300), advice);
  else if (!text.empty() && !its_text.empty() && text != its_text)
    note(made + " on another text" + named_text(file, "") + named_text(model, ", than the model"), printable(path, 300),
         advice);
}

}  // namespace nanospec
