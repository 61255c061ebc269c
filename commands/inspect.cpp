// commands/inspect.cpp: says what a model's files hold: sizes, tokenizer, tensors, files. inspection.h finds it out;
// here it is written, for people and as JSON.
#include "commands/commands.h"
#include "commands/inspection.h"
#include "commands/outputs.h"
#include "files/model_path.h"

namespace nanospec {
namespace {

struct Wanted {
  std::string model, json_file;
  bool tensors = false, metadata = false;
};

Command describe(Wanted& w) {
  return {"nanospec inspect",
          "Says what a model's files hold: its sizes, tokenizer, tensors and files, and whether nanospec loads it. It "
          "reads no more than it needs to, so a GGUF file of any size takes an instant.",
          "nanospec inspect models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
          "nanospec inspect models/SmolLM2-135M-Instruct.Q4_1.gguf --tensors --metadata\n"
          "nanospec inspect runs/small --json build/small.json\n",
          {{"--model", "FILE|DIR", &w.model, "a GGUF file, or a folder; --model may be left out", required()},
           {"--tensors", "", &w.tensors, "a line for every tensor, not for every kind"},
           {"--metadata", "", &w.metadata, "all keys of the file, with their values"},
           {"--json", "FILE", &w.json_file, "write all of it, as JSON", written()}},
          "--model"};
}

// ---------------------------------------------------------------------------------------------------------------
// For people

std::string facts_text(const std::string& title, const std::vector<Fact>& facts) {
  constexpr size_t kColumn = 24;  // where values begin
  if (facts.empty()) return "";
  std::string text = "\n" + title + "\n";
  for (const Fact& fact : facts) {
    std::string line = "  " + fact.label;
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    text += line + fact.text + "\n";
  }
  return text;
}

std::string tensors_text(const Inspection& all, bool each) {
  if (all.tensors.empty()) return "";
  TableRows rows = {{"tensor", "number", "shape", "type", "bytes"}};
  std::vector<TensorKind> kinds;
  if (each)
    for (const TensorFact& tensor : all.tensors) kinds.push_back({tensor, 1});
  else kinds = kinds_of(all.tensors);
  for (const TensorKind& kind : kinds)
    rows.push_back({printable(kind.one.name), std::to_string(kind.n), shown_shape(kind.one.shape), kind.one.type,
                    thousands(kind.one.bytes)});
  TableRows types = {{"type", "tensors", "numbers", "bytes", "bits a number"}};
  for (const TensorKind& type : types_of(all.tensors))
    types.push_back({type.one.name, std::to_string(type.n), thousands(type.one.numbers), thousands(type.one.bytes),
                     decimals(8 * ratio(type.one.bytes, type.one.numbers), 2)});
  return "\n" + format_table(rows, "lrllr") + "\n" + format_table(types, "lrrrr");
}

std::string files_text(const Inspection& all) {
  if (all.files.empty()) return "";
  TableRows rows = {{"file", "bytes", "what it is", "state"}};
  for (const FileFact& file : all.files)
    rows.push_back({printable(file.name), thousands(file.bytes), file.what, file.state});
  return "\n" + format_table(rows, "lrll");
}

std::string report(const Inspection& all, const Wanted& w) {
  std::string text = all.path + ": " + all.format + ", " + bytes_text(all.bytes) + ". nanospec " +
                     (all.obstacles.empty() ? "loads it." : "does not load it:") + "\n";
  for (const std::string& obstacle : all.obstacles) text += "  " + obstacle + "\n";
  text += facts_text("Model", all.model) + facts_text("Sizes", all.sizes) + facts_text("Tokenizer", all.tokenizer);
  text += tensors_text(all, w.tensors) + files_text(all);
  if (w.metadata) {
    text += "\nMetadata\n";
    for (const auto& [key, value] : all.metadata) text += "  " + printable(key) + " = " + value + "\n";
  }
  return text;
}

// ---------------------------------------------------------------------------------------------------------------
// JSON

OrderedJson facts_json(const std::vector<Fact>& facts) {
  OrderedJson json = OrderedJson::object();
  for (const Fact& fact : facts) json[fact.key] = fact.value;
  return json;
}

OrderedJson report_json(const Inspection& all) {
  OrderedJson tensors = OrderedJson::array(), types = OrderedJson::array(), files = OrderedJson::array();
  for (const TensorFact& one : all.tensors)
    tensors.push_back({{"name", one.name},
                       {"shape", one.shape},
                       {"type", one.type},
                       {"numbers", int64_t(one.numbers)},
                       {"bytes", int64_t(one.bytes)}});
  for (const TensorKind& type : types_of(all.tensors))
    types.push_back({{"type", type.one.name},
                     {"tensors", type.n},
                     {"numbers", int64_t(type.one.numbers)},
                     {"bytes", int64_t(type.one.bytes)}});
  for (const FileFact& file : all.files)
    files.push_back({{"name", file.name}, {"what", file.what}, {"bytes", int64_t(file.bytes)}, {"state", file.state}});
  OrderedJson metadata = OrderedJson::object();
  for (const auto& [key, value] : all.metadata) metadata[key] = value;
  return {{"path", all.path},
          {"format", all.format},
          {"bytes", int64_t(all.bytes)},
          {"loads", all.obstacles.empty()},
          {"obstacles", all.obstacles},
          {"model", facts_json(all.model)},
          {"sizes", facts_json(all.sizes)},
          {"tokenizer", facts_json(all.tokenizer)},
          {"tensors", tensors},
          {"types", types},
          {"files", files},
          {"metadata", metadata}};
}

}  // namespace

int inspect_command(int argc, char** argv) {
  Wanted w;
  const Command command = describe(w);
  const Given given = parse_flags(command, argc, argv);
  if (given.help) return 0;
  if (w.model.empty()) throw std::invalid_argument("an empty name: --model: give a GGUF file or a folder");
  check_outputs(command, given);
  const bool folder = std::filesystem::is_directory(w.model);
  const Inspection all = folder ? inspect_folder(w.model) : inspect_gguf(w.model);
  print_out(report(all, w));
  if (given.has("--json")) write_file(w.json_file, json_text(report_json(all), 2));
  return 0;
}

}  // namespace nanospec
