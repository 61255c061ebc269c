// tests/commands/test_distill.cpp: what nanospec distill writes, over the engine that stands in, whose texts end in any
// order: its questions and answers, what it drops, how it goes on.
#include <set>

#include "commands/commands.h"
#include "tests/command_line.h"
#include "tests/commands/small.h"
#include "tests/commands/stand_in.h"
#include "tests/world.h"

using namespace nanospec;

namespace {

const std::string kAskTemplate = "'<|im_start|>system\nYou help.<|im_end|>'";

// While it lives, the engine chats: its questions have the index of their text, and every third comes again, or never
// ends; some answers say the same again and again.
struct AsksItself {
  const StandInEngine before = stand_in();
  AsksItself() {
    stand_in().tokenizer = small();
    stand_in().tokenizer.chat_template = kAskTemplate;
    stand_in().script = [](const Method&, int) {
      const int sequence = calls.back().sequence, index = sequence / 2;
      std::string text = "Why " + std::to_string(index % 7 == 3 ? index - 1 : index) + "?";
      if (sequence % 2 == 0) {
        text = small().decode(calls.back().prompt.back()) + "Since " + std::to_string(index * 7919) + " is so.";
        for (int i = 0; index % 5 == 4 && i < 30; i++) text += "again";
      } else if (index % 11 == 6) text = " \n";
      Generated generated;
      generated.tokens = tokens_of(text + (index % 13 == 12 ? "" : "<|im_end|>"));
      generated.stats.tokens = int64_t(generated.tokens.size());
      return generated;
    };
  }
  ~AsksItself() { stand_in() = before; }
};

// A folder with no more of a model than its tokenizer's file, which the engine that stands in never reads.
const std::string& named_model() {
  static const Folder folder;
  static const std::string its = (folder.file("tokenizer.json", "{}"), folder.path);
  return its;
}

int distill(const std::string& out, Words words) {
  const Words first = {"distill", "--model", named_model(), "--out", out, "--quiet"};
  words.insert(words.begin(), first.begin(), first.end());
  calls.clear();
  std::vector<char*> argv = arguments(words);
  return distill_command(int(argv.size()), argv.data());
}
std::string refused_distill(const Words& words) {
  const Folder folder;
  return line_of<std::runtime_error>([&] { distill(folder.file("out.jsonl"), words); });
}

std::vector<Json> said_lines(const std::string& path) {
  std::vector<Json> lines;
  for (const std::string& line : split_at(read_file(path), '\n'))
    if (!line.empty()) lines.push_back(Json::parse(line));
  return lines;
}
std::string joined_tokens(const Json& tokens, size_t from, size_t to) {
  std::string text;
  for (size_t i = from; i < to; i++) text += small().decode(tokens[i].get<int>());
  return text;
}

}  // namespace

TEST_CASE("distill: a model asks itself and answers, and a line says what it saw and wrote") {
  const AsksItself chats;
  const Folder folder;
  const std::string out = folder.file("out.jsonl");
  CHECK(distill(out, {"--tokens", "1k"}) == 0);
  std::map<std::string, std::set<int>> dropped;
  std::set<std::string> asked;
  size_t wrote = 0, held_out = 0, texts = 0;
  const std::vector<Json> lines = said_lines(out);
  for (size_t i = 0; i < lines.size(); i++) {
    const Json& line = lines[i];
    CHECK(line["index"] == i);
    CHECK(wrote < 1000);  // the last line brought enough
    if (line.contains("dropped")) {
      dropped[line["dropped"]].insert(int(i));
      continue;
    }
    const size_t begin = line["begin"], end = line["tokens"].size();
    CHECK(asked.insert(line["question"]).second);
    CHECK(joined_tokens(line["tokens"], 0, begin) == "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n" +
                                                         line["question"].get<std::string>() +
                                                         "<|im_end|>\n<|im_start|>assistant\n");
    CHECK(joined_tokens(line["tokens"], begin, end) == line["text"]);
    CHECK(line["ended_by"] == "end of text");
    CHECK(line["tokenizer"] == tokenizer_hash(named_model()));
    wrote += end - begin, texts++, held_out += line["held_out"].get<bool>();
  }
  CHECK(wrote >= 1000);
  CHECK(texts > 30);
  CHECK(held_out > 0);
  CHECK(held_out < texts / 3);
  CHECK(dropped["loops"].count(4));
  CHECK(dropped["asked before"].count(3));
  CHECK(dropped["nothing written"].count(6));   // blanks are no question
  CHECK(dropped["nothing written"].count(12));  // one that never ended is none
  CHECK(dropped.size() == 3);
}

TEST_CASE("distill: the file is the same whatever is written side by side, and where a run was stopped") {
  const AsksItself chats;
  const Folder folder;
  const std::string whole = folder.file("whole.jsonl"), out = folder.file("out.jsonl");
  distill(whole, {"--tokens", "600"});
  const std::string bytes = read_file(whole);
  for (const char* batch : {"1", "3", "40"}) {
    distill(out, {"--tokens", "600", "--batch", batch});
    CHECK(read_file(out) == bytes);
    for (size_t cut : {size_t(0), size_t(7), bytes.find('\n') + 1, bytes.size() / 2, bytes.size() - 1}) {
      write_file(out, bytes.substr(0, cut));
      distill(out, {"--tokens", "600", "--batch", batch});
      CHECK(read_file(out) == bytes);
    }
    distill(out, {"--tokens", "600", "--batch", batch});  // nothing is left to do
    CHECK(calls.empty());
    CHECK(read_file(out) == bytes);
    std::filesystem::remove(out);
  }
  distill(whole, {"--tokens", "900"});  // more of the same
  CHECK(read_file(whole).substr(0, bytes.size()) == bytes);
  CHECK(read_file(whole).size() > bytes.size());
  const std::string other = line_of<std::runtime_error>([&] { distill(whole, {"--tokens", "900", "--seed", "8"}); });
  CHECK(contains(other, "it has texts of other prompts, settings or of another model"));
  CHECK(contains(other, "line 1"));
  // A line that begins as ours does, and is not ours.
  const size_t second = bytes.find('\n') + 1, third = bytes.find('\n', second),
               head = bytes.find("\"question\"", second);
  for (const char* rest : {"\"text\":\"\",\"begin\":0}", "\"question\":\"\",\"text\":\"\",\"begin\":9,\"tokens\":[1]}",
                           "\"question\":\"\",\"text\":\"\",\"begin\":\"x\",\"tokens\":[1]}"}) {
    write_file(out, bytes.substr(0, head) + rest + bytes.substr(third));
    CHECK(contains(line_of<std::runtime_error>([&] {
                     distill(out, {"--tokens", "900"});
                   }),
                   "no text of this model: " + out + ", line 2: "));
  }
}

TEST_CASE("distill: prompts are answered, each once, and a text is continued") {
  const AsksItself chats;
  const Folder folder;
  const std::string out = folder.file("out.jsonl"), prompts = folder.file("p.jsonl"), text = folder.file("t.txt");
  write_file(prompts, "{\"prompt\": \"One?\"}\n{\"prompt\": \"Two?\"}\n");
  distill(out, {"--prompts", prompts});
  const std::vector<Json> lines = said_lines(out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["question"] == "One?");
  CHECK(lines[1]["question"] == "Two?");

  write_file(text, made_up_text(200));
  std::filesystem::remove(out);
  distill(out, {"--text", text, "--tokens", "100", "--context", "256"});
  std::set<std::string> pieces;
  for (const Json& line : said_lines(out)) {
    if (line.contains("dropped")) continue;
    CHECK(line["begin"] == 64);
    CHECK(contains(read_file(text), line["question"].get<std::string>()));
    CHECK(joined_tokens(line["tokens"], 0, 64) == line["question"]);
    pieces.insert(line["question"]);
  }
  CHECK(pieces.size() > 2);
  const std::string small_context = folder.file("small.jsonl");  // a piece leaves room for an answer
  distill(small_context, {"--text", text, "--tokens", "100", "--context", "16"});
  for (const Json& line : said_lines(small_context))
    if (!line.contains("dropped")) CHECK(line["begin"] == 4);

  // Pieces that begin and end within a character, drawn again: a run that goes on knows them.
  std::string world;
  for (int i = 0; i < 33; i++) world += std::string("\xE4\xB8") + char(0x80 + i);
  write_file(text, world);
  std::filesystem::remove(out);
  distill(out, {"--text", text, "--tokens", "200", "--context", "256"});
  const std::string whole = read_file(out);
  CHECK(contains(whole, "asked before"));
  for (size_t cut = whole.find('\n') + 1; cut < whole.size(); cut = whole.find('\n', cut) + 1) {
    write_file(out, whole.substr(0, cut));
    distill(out, {"--text", text, "--tokens", "200", "--context", "256"});
    CHECK(read_file(out) == whole);
  }

  write_file(text, "short");
  CHECK(contains(refused_distill({"--text", text}), "it has no more than 16 tokens"));
}

TEST_CASE("distill: what it refuses") {
  const AsksItself chats;
  const auto usage = [](const Words& words) { return BAD_COMMAND_LINE(distill("build/none.jsonl", words)); };
  for (const char* wrong : {"x", "", "0", "-3", "2G", "1e", "k", "1.5", "0.0005k", "1.00005k"})
    CHECK(contains(usage({"--tokens", wrong}), "is no number of tokens: --tokens: give one from 1 on"));
  CHECK(contains(usage({"--prompts", "a", "--text", "b"}), "--prompts and --text are two sources"));
  stand_in().script = [](const Method&, int) { return Generated{tokens_of(" <|im_end|>"), {}}; };
  CHECK(contains(refused_distill({}), "of the last 100 texts none could be kept"));
  stand_in().tokenizer.chat_template = "";
  CHECK(contains(refused_distill({}),
                 "does not let the model ask itself: " + named_model() + ": give --prompts FILE or --text FILE"));
}
