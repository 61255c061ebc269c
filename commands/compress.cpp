// commands/compress.cpp: a text as an archive by a model's chances, and back (archive/archive.h).
//
// Compressing runs the text through the loop of decoding in chains that a drafter makes who knows it, and codes each
// token by the logits before it. Decompressing is decoding: any drafter, shape and number of threads gives the same
// text. Both run on the CPU alone, whose bits are the same on every machine. What comes out is written when its SHA-256
// is that of what went in.

#include "archive/archive.h"
#include "archive/known.h"
#include "commands/commands.h"
#include "commands/losses.h"
#include "model.h"

namespace nanospec {
namespace {

constexpr int kChainRows = 128;  // of a forward, for all blocks together

struct Packing {
  Options options;
  std::string in, out, stats_file;
  int blocks = 1;
  double tokens = 0, raw = 0, ideal_bits = 0, seconds = 0;
};

// A command with the flags of both commands behind its own. how: of other commands' flags, some of which it takes.
Command describe(Packing& p, Command command, const std::vector<Flag>& how) {
  const std::set<std::string> taken = {"--context", "--drafter",     "--shape",  "--budget",
                                       "--dtype",   "--cache_dtype", "--threads"};
  Options& o = p.options;
  o.settings.device = "cpu";
  command.flags.push_back({"--model", "FILE|DIR", &o.settings.model, "a GGUF file, or a model's folder", required()});
  command.flags.push_back({"-o", "FILE", &p.out, "the file to write", written(true)});
  for (const Flag& flag : together({how, machine_flags(o)}))
    if (taken.count(flag.name)) command.flags.push_back(flag);
  command.flags.push_back({"--device", "WORD", &o.settings.device, "a GPU rounds differently", one_of({"cpu"})});
  command.flags.push_back({"--quiet", "", &o.settings.quiet, "no progress, no summary"});
  return command;
}

Command describe_compress(Packing& p) {
  return describe(
      p,
      {"nanospec compress",
       "Writes a file as an archive: each token takes as many bits as it surprises the model. Any file comes "
       "back, byte for byte, by the same model.",
       "nanospec compress LICENSE --model models/SmolLM2-135M-Instruct.Q4_1.gguf -o build/LICENSE.nsz\n"
       "nanospec compress data/prompts.jsonl --model runs/small --blocks 2 -o build/prompts.nsz\n",
       {{"--text", "FILE", &p.in, "the file; -: standard input", required()},
        {"--blocks", "N", &p.blocks, "cut it into N parts that run side by side, each without a context",
         from(1, 4096)},
        {"--stats", "FILE", &p.stats_file, "write the sizes, as JSON", written()}},
       "--text"},
      model_text_flags(p.options));
}

Command describe_decompress(Packing& p) {
  return describe(p,
                  {"nanospec decompress",
                   "Writes the file that an archive holds. Drafter, shape and threads say how fast it comes back, and "
                   "change none of it.",
                   "nanospec decompress build/prompts.nsz --model runs/small -o build/prompts.jsonl\n"
                   "nanospec decompress build/prompts.nsz --model runs/small -o build/plain.jsonl --drafter none\n",
                   {{"--archive", "FILE", &p.in, "what nanospec compress wrote", required()}},
                   "--archive"},
                  speculation_flags(p.options));
}

// Runs the blocks, and shows how far they are. False after Ctrl-C.
bool run(Packing& p, Engine& engine, std::deque<Request>& requests) {
  Progress progress(p.options.settings.quiet);
  double all = 0;
  for (Request& request : requests) {
    all += request.max_new_tokens;
    request.on_token = [&, goes_on = request.on_token](int token) {
      p.tokens++;
      progress.tell(p.tokens, all, "token", p.tokens, ratio(p.tokens, all));
      return !interrupted() && (!goes_on || goes_on(token));
    };
  }
  engine.generate(p.options.method, requests);
  p.seconds = progress.seconds();
  return !interrupted();
}

void say(const Packing& p, const Engine& engine, double bytes, double archived) {
  if (p.options.settings.quiet) return;
  fputs(filled("{} in {}, {} bits a byte; {} in {}: {} a second  ({})\n", count(bytes, "byte"), thousands(archived),
               decimals(ratio(8 * archived, bytes), 3), count(p.tokens, "token"), duration(p.seconds),
               bytes_text(ratio(bytes, p.seconds)), machine_text(p.options.settings, engine))
            .c_str(),
        stderr);
}

// ---------------------------------------------------------------------------------------------------------------
// Compressing

struct Part {
  BlockWriter block;
  Known known;
};

// Codes the parts of the text, and puts them into the archive. False after Ctrl-C.
bool code(Packing& p, Engine& engine, const std::string& text, Archive& archive) {
  const int vocab = engine.config().vocab_size, begin = engine.tokenizer().begin;
  std::deque<Part> parts;
  std::deque<Request> requests;
  for (size_t i = 0, from = 0, to; i < size_t(p.blocks); i++, from = to) {
    to = character_from(text, std::max(from, text.size() * (i + 1) / size_t(p.blocks)));
    BlockWriter block(engine.tokenizer(), vocab, begin, std::string_view(text).substr(from, to - from));
    Part& part = parts.emplace_back(Part{std::move(block), {vocab}});
    const Tokens& tokens = part.known.text = part.block.tokens();
    archive.blocks.push_back({uint32_t(tokens.size()) - (begin >= 0 && !tokens.empty()), uint32_t(to - from), 0});
    p.raw += double(part.block.raw());
    if (tokens.size() < 2) continue;  // none has logits before it
    const auto pick = [&](const float* logits) {
      const int token = part.block.pick(logits);
      if (!p.stats_file.empty()) p.ideal_bits += token_loss(logits, vocab, token) / std::log(2.0);
      return token;
    };
    requests.push_back({{tokens[0]}, {}, int(tokens.size()) - 1, {}, pick, &part.known});
  }
  if (!run(p, engine, requests)) return false;
  for (size_t i = 0; i < parts.size(); i++) {
    archive.coded.push_back(parts[i].block.finish());
    archive.blocks[i].coded = uint32_t(archive.coded[i].size());
  }
  return true;
}

}  // namespace

int compress_command(int argc, char** argv) {
  Packing p;
  Options& o = p.options;
  if (!read_flags(describe_compress(p), argc, argv, o)) return 0;
  check_outputs(o.given);
  const NamedText text = text_in(p.in);
  const size_t size = text.bytes.size();
  if (size > kMostArchived) refuse("the file has more than 1 GiB", text.name, "cut it, and compress the parts");
  check_memory(p.in, double(size), 2 * takes_tokens(double(size)));
  choose_seats(o.settings, size_t(p.blocks));
  o.settings.rows = kChainRows / o.settings.seats;
  o.settings.budget = o.settings.rows - 1;
  o.method = {kTextDrafter, filled("chain:{}", o.settings.budget)};
  Archive archive;
  ArchiveHead& head = archive.head;
  head.model = number_of(hash_of_model(o.settings.model));
  Engine engine(o.settings);
  head.sha256 = digest_of(text.bytes);
  head.context = uint32_t(engine.context());
  head.blocks = uint32_t(p.blocks);
  o.settings.dtype.copy(head.dtype, sizeof head.dtype);
  o.settings.cache_dtype.copy(head.cache_dtype, sizeof head.cache_dtype);
  watch_interrupts();
  if (!code(p, engine, text.bytes, archive)) return stopped(": nothing is written");
  const std::string bytes = format_archive(archive);
  write_file(p.out, bytes);
  OrderedJson json = {{"bytes", size},        {"archive_bytes", bytes.size()},
                      {"tokens", p.tokens},   {"ideal_bits", p.ideal_bits + 8 * p.raw},
                      {"raw_bytes", p.raw},   {"blocks", p.blocks},
                      {"seconds", p.seconds}, {"text_sha256", sha256(text.bytes)}};
  json.update(settings_json(o, engine, false));
  if (!p.stats_file.empty()) write_file(p.stats_file, json_text(json, 2));
  say(p, engine, double(size), double(bytes.size()));
  return 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Decompressing

// Takes from the head what the text depends on. Throws runtime_error where the model or a flag is another.
static void take_settings(const ArchiveHead& head, Packing& p, const std::string& where) {
  Options& o = p.options;
  if (number_of(hash_of_model(o.settings.model)) != head.model)
    refuse("the archive was made with another model than " + printable(o.settings.model, 300), where,
           "give --model the one that it was made with");
  const auto take = [&](const char* flag, std::string& word, const char(&field)[4]) {
    const std::string its(field, strnlen(field, sizeof field));
    if (o.given.has(flag) && word != its)
      refuse(filled("the archive was made with {} {}, not {}", flag, printable(its), word), where,
             filled("leave {} out", flag));
    try {
      set_flag(*find_flag(o.given.command, flag), its);
    } catch (const std::invalid_argument&) {
      refuse(filled("the archive asks for {} {}, which is none", flag, printable(its)), where,
             "make the archive again");
    }
  };
  take("--dtype", o.settings.dtype, head.dtype);
  take("--cache_dtype", o.settings.cache_dtype, head.cache_dtype);
  o.settings.context = int(head.context);
  o.method.knows_noise = false;  // the text was not drawn by it
  choose_seats(o.settings, head.blocks);
}

int decompress_command(int argc, char** argv) {
  Packing p;
  if (!read_command_line(describe_decompress(p), argc, argv, p.options)) return 0;
  const NamedText file = text_in(p.in);
  const Archive archive = parse_archive(file.bytes, file.name);
  take_settings(archive.head, p, file.name);
  Engine engine(p.options.settings);
  std::deque<BlockReader> blocks;
  std::deque<Request> requests;
  for (size_t i = 0; i < archive.blocks.size(); i++) {
    BlockReader& block = blocks.emplace_back(engine.tokenizer(), engine.config().vocab_size, engine.tokenizer().begin,
                                             archive.blocks[i], archive.coded[i]);
    if (block.left() <= 0) continue;
    requests.push_back({block.prompt(),
                        {},
                        block.left(),
                        [&](int) { return !block.damaged(); },
                        [&](const float* logits) { return block.pick(logits); }});
  }
  watch_interrupts();
  if (!run(p, engine, requests)) return stopped(": nothing is written");
  std::string text;
  for (BlockReader& block : blocks) text += block.finish();
  if (digest_of(text) != archive.head.sha256)
    refuse("what comes out is not the text that went in: its SHA-256 is another", file.name,
           "make the archive again, or open it with the program that made it");
  write_file(p.out, text);
  say(p, engine, double(text.size()), double(file.bytes.size()));
  return 0;
}

}  // namespace nanospec
