// tests/commands/test_prompts.cpp: nanospec generate --prompts, over the engine that stands in, whose texts end in any
// order; at the end the program itself, with a tiny model.
#include <sys/wait.h>

#include <csignal>

#include "commands/commands.h"
#include "tests/command_line.h"
#include "tests/commands/small.h"
#include "tests/commands/stand_in.h"

using namespace nanospec;

namespace {

struct Ended {
  std::string said, error;  // on standard error; what was thrown
  int status = -1;
};

// A file of prompts, and one of texts.
struct Files {
  const Folder folder;
  const std::string in = folder.file("in.jsonl"), out = folder.file("out.jsonl");
  explicit Files(const std::string& lines) { write_file(in, lines); }

  Ended generate(Words words = {}) const {
    const Words first = {"generate", "--model", "m", "--prompts", in, "--out", out};
    words.insert(words.begin(), first.begin(), first.end());
    Ended ended;
    calls.clear();
    ended.said = captured(2, [&] {
      std::vector<char*> argv = arguments(words);
      try {
        ended.status = generate_command(int(argv.size()), argv.data());
      } catch (const std::runtime_error& error) {
        ended.error = error.what(), ended.status = 1;
      } catch (const std::invalid_argument& error) { ended.error = error.what(), ended.status = 2; }
    });
    return ended;
  }
  std::string written() const { return std::filesystem::exists(out) ? read_file(out) : "none"; }
  std::vector<Json> texts() const {
    std::vector<Json> lines;
    for (const std::string& line : split_at(read_file(out), '\n')) lines.push_back(Json::parse(line));
    return lines;
  }
};

const std::string kFour =
    "{\"prompt\": \"Hi\"}\n{\"prompt\": \"A\", \"max_new_tokens\": 3}\r\n\n  \n"
    "{\"prompt\": \"Hi\", \"seed\": 2, \"max_new_tokens\": 9}\n{\"max_new_tokens\": 0, \"prompt\": \"B\"}";

// While it lives, the engine knows a chat.
struct Chats {
  const StandInEngine before = stand_in();
  Chats() {
    stand_in().tokenizer = small();
    stand_in().tokenizer.chat_template = "'<|im_start|>system\nYou help.<|im_end|>'";
    stand_in().script = [](const Method&, int most) {
      Generated generated;
      generated.tokens = tokens_of("Yes, yes.<|im_end|>");
      if (int(generated.tokens.size()) > most) generated.tokens.resize(size_t(most));
      return generated;
    };
  }
  ~Chats() { stand_in() = before; }
};

}  // namespace

TEST_CASE("prompts: each text is what generate prints alone, in the order of the lines, in any batch") {
  const Decodes by_a_mock;
  const std::vector<std::pair<std::string, Words>> cases = {
      {"\"prompt\": \"Hi\"", {"--prompt", "Hi"}},
      {"\"prompt\": \"Hi\", \"seed\": 9", {"--prompt", "Hi", "--seed", "9"}},
      {"\"prompt\": \"a\\n\", \"temperature\": 0, \"max_new_tokens\": 7",
       {"--prompt", "a\n", "--temperature", "0", "--max_new_tokens", "7"}},
      {"\"prompt\": \"Hi\", \"top_k\": 3, \"top_p\": 0.5", {"--prompt", "Hi", "--top_k", "3", "--top_p", "0.5"}},
      {"\"prompt\": \"Hi\", \"min_p\": 0.2", {"--prompt", "Hi", "--min_p", "0.2"}},
      {"\"prompt\": \"Hi\", \"repetition_penalty\": 1.5", {"--prompt", "Hi", "--repetition_penalty", "1.5"}},
      {"\"prompt\": \"Hi\", \"presence_penalty\": 2, \"frequency_penalty\": -0.25",
       {"--prompt", "Hi", "--presence_penalty", "2", "--frequency_penalty", "-0.25"}},
      {"\"prompt\": \"longer\", \"temperature\": 0.5, \"stop\": [\"e\", \"i\"]",
       {"--prompt", "longer", "--temperature", "0.5", "--stop", "e", "--stop", "i"}},
      {"\"prompt\": \"Hi\", \"stop\": \"a\"", {"--prompt", "Hi", "--stop", "a"}},
      {"\"prompt\": \"Hi\", \"max_new_tokens\": 0", {"--prompt", "Hi", "--max_new_tokens", "0"}},
      {"\"prompt\": \"Hi\"", {"--prompt", "Hi"}}};
  std::string lines;
  std::vector<std::string> alone, why;
  std::vector<int64_t> tokens;
  const Folder folder;
  for (const auto& [line, flags] : cases) {
    lines += "{" + line + "}\n";
    Words words = {"--model", "m", "--max_new_tokens", "90", "--shape", "tree:2x2", "--stats", folder.file("s.json")};
    words.insert(words.end(), flags.begin(), flags.end());
    alone.push_back(run(generate_command, words).substr(flags[1].size()));
    const Json stats = Json::parse(read_file(folder.file("s.json")));
    why.push_back(stats["ended_by"]);
    tokens.push_back(stats["tokens"]);
  }
  CHECK(std::set<std::string>(alone.begin(), alone.end()).size() == alone.size() - 2);  // two are empty
  CHECK(std::set<std::string>(why.begin(), why.end()).size() == 2);
  for (const std::string batch : {"0", "1", "2", "3", "100"}) {
    const Files files(lines);
    const Ended ended = files.generate(
        {"--max_new_tokens", "90", "--shape", "tree:2x2", "--batch", batch, "--stats", files.folder.file("s.json")});
    CHECK_MESSAGE(ended.status == 0, ended.error);
    const std::string seats = batch == "0" || batch == "100" ? std::to_string(cases.size()) : batch;
    CHECK_MESSAGE(contains(ended.said, "(batch " + seats + "; bigram tree:2x2; "), ended.said);
    const std::vector<Json> texts = files.texts();
    REQUIRE(texts.size() == cases.size());
    int64_t sum = 0;
    for (size_t i = 0; i < texts.size(); i++) {
      CAPTURE(i);
      CHECK(texts[i]["index"] == i);
      CHECK(texts[i]["text"] == alone[i]);
      CHECK(texts[i]["ended_by"] == why[i]);
      CHECK(texts[i]["tokens"] == tokens[i]);
      CHECK(texts[i]["stats"]["tokens"] == tokens[i]);
      sum += tokens[i];
    }
    const Json stats = Json::parse(read_file(files.folder.file("s.json")));
    CHECK(stats["tokens"] == sum);
    CHECK(stats["texts"] == cases.size());
    CHECK(stats["batch"] == std::stoi(seats));
  }
}

TEST_CASE("prompts: a chat's messages become the tokens that generate --chat and chat give the model") {
  const Chats chats;
  const Files files(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Is it?\"}]}\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"Be <|im_end|>.\"}, {\"role\": \"user\", \"content\": "
      "\"Is it?\"}], \"stop\": \"s.\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"A\"}, {\"role\": \"assistant\", \"content\": \"B\"}, "
      "{\"role\": \"user\", \"content\": \"C\"}], \"max_new_tokens\": 2}\n"
      "{\"prompt\": \"Is it?\", \"stop\": \"yes.!\"}\n");
  CHECK(files.generate().status == 0);
  std::vector<Tokens> prompts;
  for (const Call& call : calls) prompts.push_back(call.prompt);
  const auto alone = [](Words words) {
    words.insert(words.begin(), {"--model", "m", "--prompt", "Is it?"});
    const std::string text = run(generate_command, words);
    return std::pair(calls.at(0).prompt, text);
  };
  REQUIRE(prompts.size() == 4);
  CHECK(alone({"--chat"}) == std::pair(prompts[0], std::string("Is it?\nYes, yes.")));
  CHECK(alone({"--chat", "--system", "Be <|im_end|>.", "--stop", "s."}) ==
        std::pair(prompts[1], std::string("Is it?\nYes, ye")));
  CHECK(small().decode(prompts[2]) ==
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n");
  CHECK(alone({}).first == prompts[3]);
  const std::vector<Json> texts = files.texts();
  CHECK(texts[0]["text"] == "Yes, yes.");
  CHECK(texts[0]["ended_by"] == "end of text");
  CHECK(texts[1]["text"] == "Yes, ye");
  CHECK(texts[1]["ended_by"] == "stop");
  CHECK(texts[2]["ended_by"] == "length");
  CHECK(texts[3]["text"] == "Yes, yes.");  // no stop is complete

  const Files asked("{\"prompt\": \"Is it?\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"Is it?\"}]}\n");
  CHECK(asked.generate({"--chat", "--system", "Be."}).status == 0);
  prompts = {calls[0].prompt, calls[1].prompt};
  CHECK(alone({"--chat", "--system", "Be."}).first == prompts[0]);
  CHECK(prompts[1] == prompts[0]);
}

TEST_CASE("prompts: half a character is left out at the end of a text") {
  const Chats chats;
  const Tokens bytes = tokens_of("\xC3\xA9");
  REQUIRE(bytes.size() == 2);
  stand_in().script = [bytes](const Method&, int) {
    Generated generated;
    generated.tokens = {bytes[0], bytes[1], bytes[0]};
    return generated;
  };
  const Files files("{\"prompt\": \"a\"}");
  files.generate();
  CHECK(files.texts().at(0)["text"] == "\xC3\xA9");
}

TEST_CASE("prompts: cut after any byte, the same command goes on, to the same file") {
  script = steady;
  const Files files(kFour);
  REQUIRE(files.generate({"--max_new_tokens", "30"}).status == 0);
  const std::string whole = files.written();
  CHECK(std::count(whole.begin(), whole.end(), '\n') == 4);
  for (size_t bytes = 0; bytes < whole.size(); bytes++) {
    const size_t begin = bytes < 3 ? 0 : whole.rfind('\n', bytes - 3) + 1;  // of the line, or a byte or two behind it
    if (bytes > 50 && bytes - begin > 5 && bytes % 83 != 0) continue;       // inside a line, some will do
    write_file(files.out, whole.substr(0, bytes));
    const Ended ended = files.generate({"--max_new_tokens", "30", "--drafter", "none", "--batch", "2"});
    REQUIRE_MESSAGE(ended.status == 0, bytes << ": " << ended.error);
    const auto kept = std::count(whole.begin(), whole.begin() + long(bytes), '\n');
    CHECK(int(calls.size()) == 4 - kept);
    CHECK(contains(ended.said, "out.jsonl has ") == (kept > 0));
    std::vector<Json> texts = files.texts();
    REQUIRE(texts.size() == 4);
    for (size_t i = 0; i < 4; i++) {
      Json before = Json::parse(split_at(whole, '\n')[i]);
      if (int(i) >= kept) texts[i]["stats"] = before["stats"] = 0;  // it was generated by another drafter
      CHECK(texts[i] == before);
    }
  }
  write_file(files.out, whole);
  const Ended ended = files.generate({"--max_new_tokens", "30", "--stats", files.folder.file("none.json")});
  CHECK(contains(ended.said, "nothing is left to do: "));
  CHECK(contains(ended.said, "no figures are written: " + files.folder.file("none.json")));
  CHECK(ended.status == 0);
  CHECK(calls.empty());
  CHECK(files.written() == whole);
  write_file(files.in, kFour + "\n{\"prompt\": \"more\"}\n");
  CHECK(files.generate({"--max_new_tokens", "30"}).status == 0);
  CHECK(calls.size() == 1);
  CHECK(files.written().substr(0, whole.size()) == whole);
}

TEST_CASE("prompts: a file of other texts is refused, and stays as it is") {
  script = steady;
  const Files files(kFour);
  files.generate();
  const std::string whole = files.written(), half = whole.substr(0, whole.size() - 100);
  const auto refused = [&](const std::string& file, const Words& words, int line) {
    write_file(files.out, file);
    const Ended ended = files.generate(words);
    CHECK(ended.status == 1);
    CHECK_MESSAGE(contains(ended.error, filled("out.jsonl, line {}: give --out another name", line)), ended.error);
    CHECK(calls.empty());
    CHECK(files.written() == file);
  };
  refused("a letter", {}, 1);
  refused("{\"index\":0}\n", {}, 1);
  refused(whole.substr(0, 40), {"--seed", "7"}, 1);  // it looks like ours, but is not
  refused(half + "\n" + whole, {}, 5);
  refused(whole + "\n", {}, 5);
  for (const Words& words : {Words{"--seed", "7"},
                             {"--temperature", "0.5"},
                             {"--top_k", "3"},
                             {"--top_p", "0.5"},
                             {"--min_p", "0.5"},
                             {"--repetition_penalty", "1.5"},
                             {"--presence_penalty", "0.5"},
                             {"--frequency_penalty", "0.5"},
                             {"--stop", "x"},
                             {"--ignore_eos"},
                             {"--dtype", "bf16"},
                             {"--cache_dtype", "bf16"},
                             {"--context", "32"},
                             {"--model", "n"},
                             {"--max_new_tokens", "4"},
                             {"--chat"},
                             {"--verify", "typical"}})
    refused(whole, words, 1);
  write_file(files.in, "{\"prompt\": \"Hi\"}\n{\"prompt\": \"B\"}\n");
  refused(whole, {}, 2);
  write_file(files.in, "{\"prompt\": \"Hi\"}\n");
  refused(whole, {}, 2);  // there are fewer prompts
  for (const Words& words : {Words{"--shape", "chain:2"}, {"--threads", "1"}, {"--batch", "1"}, {"--quiet"}}) {
    write_file(files.in, kFour);
    write_file(files.out, half);
    CHECK(files.generate(words).status == 0);
  }
}

TEST_CASE("prompts: a bad line is told by its number, before anything runs") {
  script = steady;
  const auto error = [](const std::string& line, const Words& words = {}) {
    const Files files("{\"prompt\": \"Hi\"}\n\n" + line + "\n{\"prompt\": \"Hi\"}\n");
    const Ended ended = files.generate(words);
    CHECK(ended.status == 1);
    CHECK(calls.empty());
    CHECK(files.written() == "none");
    CHECK_MESSAGE(contains(ended.error, "in.jsonl, line 3"), ended.error);
    return ended.error;
  };
  const auto is = [&](const std::string& line, const std::string& part) {
    const std::string said = error(line);
    CHECK_MESSAGE(contains(said, part), line << " " << said);
  };
  is("{\"prompt\": ", "not valid JSON");
  is("[1]", "not an object of JSON: ");
  is("{\"prompt\": \"a\", \"prompt\": \"b\"}", "prompt");
  is("{\"prompt\": \"a\", \"temprature\": 1}", "unknown key 'temprature': ");
  is("{\"prompt\": \"a\", \"temprature\": 1}", "did you mean temperature? known are prompt, messages, ");
  is("{\"prompt\": \"a\", \"zzz\": 1}", ", line 3: known are prompt");
  is("{\"seed\": 1}", "there must be a \"prompt\" or \"messages\"");
  is("{\"prompt\": \"a\", \"messages\": []}", "and not both");
  is("{\"prompt\": \"\"}", "there is nothing to continue: ");
  is("{\"prompt\": \"\"}", "line 3, the prompt: give at least one character");
  is("{\"prompt\": 5}", "\"prompt\" is not a text");
  is("{\"prompt\": \"\\u00e9\"}", "is not in the vocabulary: ");
  is("{\"prompt\": \"a\\u00e9\"}", "line 3, character 2 of the prompt (line 1, column 2): use only characters");
  is("{\"prompt\": \"a\", \"temperature\": -1}", "'-1' is out of range: ");
  is("{\"prompt\": \"a\", \"temperature\": \"1: --x\"}", ", line 3, temperature: give a number from 0 to ");
  is("{\"prompt\": \"a\", \"temperature\": 1e-9}", "too cold: ");
  is("{\"prompt\": \"a\", \"top_p\": 0}", "line 3, top_p: give a number above 0, at most 1");
  is("{\"prompt\": \"a\", \"top_k\": 1.5}", "'1.5' is not a whole number: ");
  is("{\"prompt\": \"a\", \"seed\": -1}", "line 3, seed: give a whole number from 0");
  is("{\"prompt\": \"a\", \"seed\": null}", "'null' is not a whole number");
  is("{\"prompt\": \"a\", \"max_new_tokens\": 2000000000}", "'2000000000' is out of range: ");
  is("{\"prompt\": \"a\", \"stop\": \"\"}", "\"stop\" is not a text, or an empty one");
  is("{\"prompt\": \"a\", \"stop\": [\"b\", 5]}", "\"stop\" is not a text");
  const auto chat = [&](const std::string& messages, const std::string& part) {
    is("{\"messages\": " + messages + "}", part);
  };
  const auto of = [](const std::string& role, const std::string& text) {
    return "{\"role\": \"" + role + "\", \"content\": \"" + text + "\"}";
  };
  chat("[]", "the last message is not the user's");
  chat("\"a\"", "\"messages\" is not a list");
  chat("[5]", "a message is not \"role\" and \"content\"");
  chat("[{\"role\": \"user\", \"content\": \"a\", \"name\": \"b\"}]", "a message is not \"role\" and \"content\"");
  chat("[" + of("user", "") + "]", "an empty question");
  chat("[" + of("tool", "a") + "]", "a message of 'tool' cannot stand here: ");
  chat("[" + of("assistant", "a") + "]", "a message of 'assistant' cannot stand here: ");
  chat("[" + of("user", "a") + ", " + of("user", "b") + "]", "a message of 'user' cannot stand here: ");
  chat("[" + of("user", "a") + ", " + of("system", "b") + "]", "first system, if any, then user and assistant in turn");
  chat("[" + of("user", "a") + ", " + of("assistant", "b") + "]", "the last message is not the user's");
  chat("[" + of("user", "\xC3\xA9") + "]", "line 3, character 1 of the question");

  for (const char* lines : {"", "\n \r\n"}) {
    const Ended ended = Files(lines).generate();
    CHECK(ended.status == 1);
    CHECK(contains(ended.error, "there are no prompts: "));
  }
}

TEST_CASE("prompts: Ctrl-C leaves whole lines, and the same command goes on") {
  int asked = 0;
  script = steady;
  const Files files("{\"prompt\": \"A\"}\n{\"prompt\": \"B\"}\n{\"prompt\": \"C\"}\n{\"prompt\": \"D\"}\n");
  files.generate({"--batch", "1"});
  const std::string whole = files.written();
  std::filesystem::remove(files.out);
  script = [&](const Method& method, int n) {
    if (++asked == 3) raise(SIGINT);
    return steady(method, n);
  };
  const Ended stopped = files.generate({"--batch", "1"});
  CHECK(stopped.status == kInterruptedStatus);
  CHECK_MESSAGE(contains(stopped.said, "out.jsonl has 2 of 4 texts; the same command goes on\n"), stopped.said);
  CHECK(calls.size() == 3);  // no other begins
  CHECK(files.written() == whole.substr(0, whole.find("{\"index\":2")));
  CHECK(forget_interrupt());
  CHECK(files.generate({"--batch", "1"}).status == 0);
  CHECK(files.written() == whole);
}

TEST_CASE("prompts: what does not fit together on the command line is refused") {
  script = steady;
  const Folder folder;
  const std::string in = folder.file("in", kFour), out = folder.file("out");
  const auto refused = [&](Words words) {
    words.insert(words.begin(), {"generate", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    const std::string line = BAD_COMMAND_LINE(generate_command(int(argv.size()), argv.data()));
    CHECK(!std::filesystem::exists(out));
    return line;
  };
  CHECK(contains(refused({"--prompts", in}), "add --out FILE"));
  CHECK(contains(refused({"--prompts", in, "--out", in}), "--out would write over what --prompts reads"));
  CHECK(contains(refused({"--prompts", in, "--out", out, "--stats", out}), "are one file"));
  CHECK(contains(refused({"--prompts", in, "--out", out, "--prompt", "A"}), "more than one prompt"));
  CHECK(contains(refused({"--prompts", in, "--out", out, "--prompt_file", in}), "more than one prompt"));
  CHECK(contains(refused({"--prompts", in, "--out", out, "--stream"}), "--stream writes one text"));
  CHECK(contains(refused({"--prompts", in, "--out", out, "--batch", "-1"}), "--batch"));
  CHECK(contains(refused({"--prompt", "A", "--out", out}), "--out is for many texts"));
  CHECK(contains(refused({"--prompt", "A", "--batch", "2"}), "--batch is for many texts"));
}

TEST_CASE("prompts: the program's texts are those of generate alone, of a real model's kind") {
  const Folder folder;
  const std::string start = "build/nanospec generate --quiet --model tests/files/llama_grouped.gguf --seed 5 ",
                    err = " 2>" + folder.file("err");
  std::string lines;
  std::vector<std::string> alone;
  const auto add = [&](const std::string& line, const std::string& flags) {
    const std::string command = start + flags + " --prompt \"Is it 12?\" >" + folder.file("text") + err;
    REQUIRE_MESSAGE(std::system(command.c_str()) == 0, "this test needs build/nanospec: " << command);
    alone.push_back(read_file(folder.file("text")).substr(9));
    lines += "{" + line + "}\n";
  };
  const std::string prompt = "\"prompt\": \"Is it 12?\"";
  add(prompt, "");
  add(prompt + ", \"temperature\": 1, \"max_new_tokens\": 300", "--temperature 1 --max_new_tokens 300");
  add(prompt + ", \"temperature\": 0, \"seed\": 3", "--temperature 0 --seed 3");
  add(prompt + ", \"top_p\": 0.5, \"stop\": [\"e\", \"t\"]", "--top_p 0.5 --stop e --stop t");
  add("\"messages\": [{\"role\": \"user\", \"content\": \"Is it 12?\"}]", "--chat");
  alone.back().erase(0, 1);  // the line end between question and answer
  write_file(folder.file("in"), lines);
  for (const std::string flags : {"", "--batch 2 --drafter none", "--drafter recycle --shape tree:2x2"}) {
    const std::string out = folder.file("out");
    std::filesystem::remove(out);
    const std::string command = start + flags + " --prompts " + folder.file("in") + " --out " + out + err;
    REQUIRE(std::system(command.c_str()) == 0);
    const std::vector<std::string> texts = split_at(read_file(out), '\n');
    REQUIRE(texts.size() == alone.size());
    for (size_t i = 0; i < alone.size(); i++) {  // JSON cannot hold bytes that are not UTF-8
      const Json same = Json::parse(json_text(Json(alone[i]), -1));
      CHECK_MESSAGE((Json::parse(texts[i])["text"] == same), flags << ", text " << i << " is another");
    }
  }
}

TEST_CASE("prompts: more texts side by side than the cache has places for are refused by the program") {
  const Folder folder;
  const std::string model = folder.path + "/long", said = folder.path + "/said";
  Config config;
  config.n_layer = config.n_head = config.n_kv_head = config.n_embd = 1;  // of a key a sixteenth is used
  config.vocab_size = 3, config.block_size = kMaxBlock;
  save_model(model, config, character_tokenizer("abc"), initial_weights(config, 1).data());
  std::string lines;
  for (int i = 0; i < 4096; i++) lines += "{\"prompt\": \"a\"}\n";
  const std::string prompts = folder.file("p.jsonl", lines);
  const std::string command = "build/nanospec generate --model " + model + " --prompts " + prompts + " --out " +
                              folder.path + "/o.jsonl --drafter none --max_new_tokens 1 --quiet --batch 4096 2>" + said;
  const int status = std::system(command.c_str());
  REQUIRE_MESSAGE(WIFEXITED(status), "this test needs build/nanospec: " << command);
  CHECK(WEXITSTATUS(status) == 1);
  CHECK_MESSAGE(contains(read_file(said), "4096 texts side by side "), read_file(said));
}
