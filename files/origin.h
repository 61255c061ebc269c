// files/origin.h: where a file comes from, in its metadata: "text" and "text_sha256", the text that was learned or
// counted; "model", the hash of the weights that it was made with.
//
// A file that does not fit the model makes drafts worse, but never the text wrong: so it is used, with a note (text.h).
// A file without these metadata is used without a note.
#pragma once

#include "files/gguf.h"
#include "files/safetensors.h"

namespace nanospec {

// The metadata of the text at this path, of this SHA-256. A text from a pipe has no name.
inline Metadata text_origin(const std::string& path, const std::string& sha256) {
  Metadata origin = {{"text_sha256", sha256}};
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path, error);  // the name, not that of a link to it
  if (std::filesystem::is_regular_file(file, error)) origin["text"] = printable(file.filename().string());
  return origin;
}

// Reads the file at `path`. Where there is none, throws with what is missing, and what makes it.
inline SafeTensors read_made(const std::string& path, const std::string& missing, const std::string& maker) {
  if (!std::filesystem::exists(path)) refuse(missing, path, maker);
  return read_safetensors(path);
}

inline std::string said_by(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

// The metadata of the model in `dir`; none if it cannot be read: loading it will throw.
inline Metadata model_metadata(const std::string& dir) {
  try {
    return read_header(dir + "/model.safetensors").metadata;
  } catch (const std::runtime_error&) { return {}; }
}

// The hash of its weights, also if their file has none; "" if there are no weights.
inline std::string model_hash(const std::string& dir) {
  const std::string hash = said_by(model_metadata(dir), "hash"), path = dir + "/model.safetensors";
  return !hash.empty() || !std::filesystem::exists(path) ? hash : hash_of(read_regular(path));
}

// The same of a folder; of a GGUF file the hash of all of it. Throws std::runtime_error where that cannot be read.
inline std::string weights_hash(const std::string& model) {
  if (!is_gguf(model)) return model_hash(model);
  const GgufFile file = read_gguf(model);
  return hash_of({std::string_view(reinterpret_cast<const char*>(file.bytes.get()), file.size)});
}

// "text, NAME": of either part what is known.
inline std::string named_text(const Metadata& metadata, const std::string& before) {
  const std::string name = said_by(metadata, "text");
  return before + (name.empty() ? "" : ", " + printable(name));
}

// The command that trains the drafter of this name, in `dir`, on the model in `target`.
inline std::string drafter_trainer(const std::string& name, const std::string& target, const std::string& dir) {
  return "train_drafter --" + name + " " + (target.empty() ? "MODEL" : printable(target, 300)) + " --data FILE" +
         (dir.empty() || dir == target ? "" : " --out " + printable(dir, 300));
}

// Notes that the file at `path` was made with another model than that in `dir`, or of another text. made: "the heads
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
