// tests/commands/test_outputs.cpp: what a run may write, and what it refuses before its work begins.
#include "commands/cli.h"

#include <fcntl.h>

#include "tests/command_line.h"

using namespace nanospec;

namespace {

// A command with every kind of path, and what it says of these words: "" where it would begin.
std::string complaint(Words words, const std::vector<std::string>& also_reads = {}, const std::string& own = "") {
  std::string model, prompt, stats, svg, out;
  const Command command = {"tool",
                           "",
                           "",
                           {{"--model", "DIR", &model, ""},
                            {"--prompt_file", "FILE", &prompt, ""},
                            {"--stats", "FILE.json", &stats, "", written()},
                            {"--svg", "FILE", &svg, "", written()},
                            {"--out", "DIR", &out, "", written()}}};
  words.insert(words.begin(), "tool");
  const std::vector<char*> argv = arguments(words);
  try {
    check_outputs(parse_flags(command, int(argv.size()), argv.data()), also_reads, own);
  } catch (const std::invalid_argument& error) {
    return std::string("2: ") + error.what();
  } catch (const std::runtime_error& error) { return std::string("1: ") + error.what(); }
  return "";
}

size_t entries(const std::string& folder) {
  const std::filesystem::directory_iterator all(folder);
  return size_t(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_CASE("outputs: two of them are never one file, by whatever links") {
  const Folder f;
  const std::string a = f.file("a", "old"), link = f.file("link"), hard = f.file("hard");
  std::filesystem::create_symlink("a", link);
  std::filesystem::create_hard_link(a, hard);
  CHECK(complaint({"--stats", a, "--svg", f.file("b")}) == "");
  for (const std::string& other : {a, link, hard, f.path + "/./a", f.path + "/../" + f.path.substr(5) + "/a"})
    CHECK(contains(complaint({"--stats", a, "--svg", other}), "2: --svg and --stats are one file: "));
  CHECK(contains(complaint({"--stats", f.file("new"), "--svg", f.path + "/x/../new"}), "are one file"));  // yet to come
  CHECK(complaint({"--stats", "/dev/null", "--svg", "/dev/null"}) == "");
  CHECK(complaint({"--svg", "-"}) == "2: --svg is a file, never standard output: -: give it another name");
  CHECK(complaint({"--svg", f.path + "/-"}) == "");
  CHECK(read_file(a) == "old");
  CHECK(entries(f.path) == 3);
}

TEST_CASE("outputs: what the run reads stays, and so does every file of a model") {
  const Folder f;
  const std::string text = f.file("p.txt", "text"), link = f.file("link"), model = f.file("m"),
                    blob = f.file("blob", "");
  std::filesystem::create_symlink(text, link);
  std::filesystem::create_directory(model);
  CHECK(
      contains(complaint({"--prompt_file", text, "--stats", text}), "2: --stats would write over what --prompt_file"));
  CHECK(contains(complaint({"--prompt_file", text, "--stats", link}), "reads"));
  CHECK(contains(complaint({"--prompt_file", link, "--stats", text}), "reads"));
  CHECK(contains(complaint({"--svg", text}, {text}), "2: --svg would write over what this run reads"));
  CHECK(complaint({"--prompt_file", text, "--stats", f.file("s.json")}) == "");

  // By name, there or not, in any folder; and by what the model's own names lead to.
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
                           "optimizer.safetensors", "bigram.safetensors", "medusa.safetensors", "calibration.json"})
    CHECK(contains(complaint({"--stats", model + "/" + name}), "2: --stats would write over a file of a model: "));
  std::filesystem::create_symlink(blob, model + "/model.safetensors");
  CHECK(contains(complaint({"--model", model, "--stats", blob}), "a file of a model"));
  CHECK(contains(complaint({"--svg", blob}, {model}), "a file of a model"));
  CHECK(complaint({"--stats", blob}) == "");
  CHECK(complaint({"--stats", model + "/train.json"}) == "");
  CHECK(complaint({"--svg", model + "/calibration.json"}, {}, "calibration.json") == "");

  // What is trained on does not lie where the training writes.
  const std::string data = f.file("m/bigram.safetensors", "text");
  CHECK(contains(complaint({"--prompt_file", data, "--out", model + "/"}),
                 "2: --out would write over what --prompt_file"));
  CHECK(complaint({"--prompt_file", text, "--out", f.path}) == "");
}

TEST_CASE("outputs: a place that cannot be written is refused with status 1, and nothing is left of the attempt") {
  const Folder f;
  for (const std::string& bad : {f.path, f.file("none") + "/s.json", std::string("/proc/s.json"), std::string(""),
                                 f.file(std::string(300, 'x'))})
    CHECK_MESSAGE(complaint({"--stats", bad}).substr(0, 3) == "1: ", bad);
  CHECK(complaint({"--out", f.file("new"), "--stats", f.file("new/train.json")}) == "");  // the run makes that folder
  CHECK(contains(complaint({"--out", f.file("new"), "--stats", f.file("new")}), "are one file"));
  CHECK(contains(complaint({"--out", f.path, "--stats", f.file("none/train.json")}), "1: "));
  CHECK(entries(f.path) == 0);
  // A link in a circle, one into a folder that is not there; one to a file that is to come is that file.
  std::filesystem::create_symlink("loop", f.file("loop"));
  std::filesystem::create_symlink("none/s.json", f.file("lost"));
  std::filesystem::create_symlink("s.json", f.file("link"));
  CHECK(contains(complaint({"--stats", f.file("loop")}), "1: cannot write the file: " + f.file("loop") + " (Too many"));
  CHECK(contains(complaint({"--stats", f.file("lost")}), "1: cannot write the file: " + f.file("lost") + " (No such"));
  CHECK(complaint({"--stats", f.file("link")}) == "");
  CHECK(contains(complaint({"--stats", f.file("link"), "--svg", f.file("s.json")}), "2: --svg and --stats are one"));
  CHECK(entries(f.path) == 3);
}

TEST_CASE("outputs: none is what standard output or error writes") {
  const Folder f;
  for (int output : {1, 2}) {
    std::string line;
    captured(output, [&] { line = complaint({"--stats", output == 1 ? "/dev/stdout" : "/dev/stderr"}); });
    CHECK(contains(line, output == 1 ? "2: --stats is what standard output writes" : "is what standard error writes"));
  }
}
