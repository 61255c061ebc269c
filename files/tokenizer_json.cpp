// files/tokenizer_json.cpp: reads Hugging Face's tokenizer.json: what bpe.h declares of it.
#include "files/bpe.h"

namespace nanospec {

namespace {

// A file of Hugging Face's, and its refusals.
struct HfReader {
  const Json file;
  const std::string& where;
  const std::string advice = "give another tokenizer: docs/formats.md says which load";
  const Json &model = member(file, "model"), &normalizer = member(file, "normalizer"),
             &pre = member(file, "pre_tokenizer"), &decoder = member(file, "decoder"),
             &vocabulary = member(model, "vocab");
  BpeParts parts = {};  // a type of 0: there is no such token yet

  [[noreturn]] void wrong(const std::string& what) const { refuse(what, where, advice); }
  // Refuses an option that is neither missing nor one of these.
  void expect(const std::string& of, const Json& object, const char* name, std::initializer_list<Json> allowed) const {
    const Json& value = member(object, name);
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) wrong(of + name + " is " + named(value));
  }
  // An object of a type, by its type.
  std::string named(const Json& value) const {
    const Json& type = member(value, "type");
    return type.is_string() ? shown(type) : shown(value);
  }

  // Whether it is ByteLevel, and cuts as GPT-2 does; or, after others that have cut, not at all.
  bool byte_level(const Json& one, bool cuts) const {
    if (member(one, "type") != "ByteLevel") return false;
    expect("the pre-tokenizer's ", one, "add_prefix_space", {false});
    if (cuts) expect("the pre-tokenizer's ", one, "use_regex", {nullptr, true});
    else expect("the pre-tokenizer's ", one, "use_regex", {false});
    return true;
  }
  std::string pre_split() const {
    if (byte_level(pre, true)) return "gpt-2";
    const Json& list = member(pre, "pretokenizers");
    if (member(pre, "type") != "Sequence" || !list.is_array()) wrong("the pre-tokenizer is " + named(pre));
    const Json& first = list.empty() ? pre : list[0];
    if (list.size() == 2 && member(first, "type") == "Digits" && byte_level(list[1], true)) {
      expect("the pre-tokenizer's ", first, "individual_digits", {true});
      return "smollm";
    }
    if (list.size() == 2 && member(first, "type") == "Split" && byte_level(list[1], false)) {
      expect("the pre-tokenizer's ", first, "behavior", {"Isolated"});
      expect("the pre-tokenizer's ", first, "invert", {nullptr, false});
      const Json& regex = member(member(first, "pattern"), "Regex");
      if (const char* const known = split_by(regex)) return known;
      wrong("the pre-tokenizer cuts by " + shown(regex) + ", which is not known");
    }
    const std::string names = joined(list, ", ", [&](const Json& one) { return named(one); });
    wrong("the pre-tokenizer is a sequence of " + printable(names, 200));
  }

  void check_model() const {
    expect("the model's ", model, "type", {"BPE"});
    expect("the model's ", model, "dropout", {nullptr, 0, 0.0});
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      expect("the model's ", model, name, {nullptr, ""});
    for (const char* name : {"byte_fallback", "ignore_merges"})
      expect("the model's ", model, name, {nullptr, false, true});
    for (const char* name : {"truncation", "padding"}) expect("its ", file, name, {nullptr});
  }
  void read_byte_level() {
    parts.nfc = member(normalizer, "type") == "NFC";
    if (!normalizer.is_null() && !parts.nfc) wrong("its normalizer is " + named(normalizer));
    if (member(decoder, "type") != "ByteLevel") wrong("its decoder is " + named(decoder));
    parts.pre = pre_split();
    for (int byte = 0; byte < 256; byte++)  // for a byte that the vocabulary lacks an unknown token would stand
      if (!vocabulary.contains(gpt2_name(byte)))
        expect("the vocabulary lacks bytes, and the model's ", model, "unk_token", {nullptr});
  }
  // Llama 2's normalizer writes spaces as U+2581; Mistral's pre-tokenizer does the same.
  void read_sentencepiece() {
    static const Json mark = kSpaceMark, prepend = {{"type", "Prepend"}, {"prepend", mark}},
                      write = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}},
                      read = {{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
                      normal = {{"type", "Sequence"}, {"normalizers", {prepend, write}}},
                      strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
    if (normalizer == normal && pre.is_null()) parts.space_first = SpaceFirst::always;
    else if (!normalizer.is_null()) wrong("its normalizer is " + named(normalizer));
    else parts.space_first = space_of_metaspace();
    Json decoders = {read, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (parts.space_first != SpaceFirst::nowhere) decoders.push_back(strip);
    if (decoder != Json{{"type", "Sequence"}, {"decoders", decoders}})
      wrong("its decoder is not that of Llama 2 or Mistral");
    for (size_t id = 0; id < parts.tokens.size(); id++)
      if (parts.types[id] == 1 && byte_of(parts.tokens[id]) >= 0) parts.types[id] = kByte;
  }
  SpaceFirst space_of_metaspace() const {
    if (member(pre, "type") != "Metaspace") wrong("the pre-tokenizer is " + named(pre));
    expect("the pre-tokenizer's ", pre, "replacement", {kSpaceMark});
    expect("the pre-tokenizer's ", pre, "split", {false});
    expect("the pre-tokenizer's ", pre, "prepend_scheme", {"first", "always", "never"});
    const Json& scheme = pre["prepend_scheme"];
    return scheme == "first" ? SpaceFirst::at_start : scheme == "always" ? SpaceFirst::if_missing : SpaceFirst::nowhere;
  }

  // What is done at the end: ByteLevel changes no ids; a template may put one token before the text.
  void read_post_processor(const Json& step) {
    const Json &type = member(step, "type"), &list = member(step, "processors");
    if (step.is_null() || type == "ByteLevel") return;
    if (type == "TemplateProcessing") return read_template(step);
    if (type != "Sequence" || !list.is_array()) wrong("its post_processor is " + named(step));
    for (const Json& one : list) {
      if (member(one, "type") == "Sequence") wrong("its post_processor is a sequence in a sequence");
      read_post_processor(one);
    }
  }
  void read_template(const Json& step) {
    const Json& single = member(step, "single");
    const size_t n = single.is_array() ? single.size() : 0;
    if (n < 1 || n > 2 || member(member(single[n - 1], "Sequence"), "id") != "A")
      wrong("its post_processor adds more than one token before a text");
    if (n == 1) return;
    const Json& name = member(member(single[0], "SpecialToken"), "id");
    const Json& ids = name.is_string() ? member(member(member(step, "special_tokens"), name), "ids") : name;
    if (!ids.is_array() || ids.size() != 1)
      wrong("its post_processor adds " + shown(name) + " before a text, which has not one id");
    parts.begin = id_of(name, ids[0], parts.tokens.size());
  }

  // An id of the file: one of `all`.
  int id_of(const std::string& name, const Json& id, size_t all) const {
    if (!is_below(id, all))
      refuse(filled("the id of \"{}\" is {}, expected each of 0 to {} once", printable(name), shown(id), all - 1),
             where);
    return id.get<int>();
  }
  // An added token may be in the vocabulary too, under the same id.
  void put(const std::string& name, int id, TokenType type) {
    std::string& token = parts.tokens[size_t(id)];
    int& its = parts.types[size_t(id)];
    const int normal = int(TokenType::normal);
    if (its && (type == TokenType::normal || its != normal || token != name))
      refuse(filled("the id {} is there twice", id), where);
    token = name;
    its = int(type);
  }

  void read_vocabulary() {
    const Json& added = member(file, "added_tokens");
    if (!vocabulary.is_object() || vocabulary.empty()) refuse("no vocabulary (model.vocab)", where);
    if (!added.is_null() && !added.is_array()) refuse("added_tokens is " + shown(added), where);
    size_t all = vocabulary.size();
    for (const Json& token : added) {
      if (!member(token, "content").is_string()) refuse("an added token has no content", where);
      all += !vocabulary.contains(member(token, "content").get_ref<const std::string&>());
    }
    parts.tokens.resize(all);
    parts.types.resize(all);
    for (const auto& [name, id] : vocabulary.items()) put(name, id_of(name, id, all), TokenType::normal);
    for (const Json& token : added) read_added(token, added[0], all);
  }
  // It is sought in the text as it is.
  void read_added(const Json& token, const Json& first, size_t all) {
    const std::string& name = member(token, "content").get_ref<const std::string&>();
    const std::string of = "the added token \"" + printable(name) + "\": its ";
    const int id = id_of(name, member(token, "id"), all);
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) expect(of, token, flag, {nullptr, false});
    expect(of, token, "special", {true, false});
    expect(of, token, "normalized", {true, false});
    expect(of, token, "normalized", {member(first, "normalized")});  // Hugging Face would seek them in two turns
    if (!normalizer.is_null()) expect(of, token, "normalized", {false});
    put(name, id, member(token, "special").get<bool>() ? TokenType::control : TokenType::user_defined);
  }

  // "left right", or since 2024 ["left", "right"].
  void read_merges() {
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) refuse("no merges (model.merges)", where);
    for (const Json& merge : merges) {
      if (merge.is_string()) parts.merges.push_back(merge.get<std::string>());
      else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
        parts.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
      else refuse(filled("merge {} is {}", parts.merges.size(), shown(merge)), where);
    }
  }
};

}  // namespace

BpeParts parse_bpe(const std::string& text, const std::string& where) {
  HfReader reader{parse_json(text, where), where};
  reader.check_model();
  reader.read_vocabulary();
  reader.read_merges();
  reader.parts.ignore_merges = member(reader.model, "ignore_merges") == true;
  reader.parts.sentencepiece = member(reader.model, "byte_fallback") == true;
  if (reader.parts.sentencepiece) reader.read_sentencepiece();
  else reader.read_byte_level();
  reader.read_post_processor(member(reader.file, "post_processor"));
  return reader.parts;
}

Tokenizer parse_any_tokenizer(const std::string& text, const std::string& where) {
  const bool characters = member(member(parse_json(text, where), "model"), "type") == "WordLevel";
  return characters ? parse_tokenizer(text, where) : bpe_tokenizer(parse_bpe(text, where), where);
}

}  // namespace nanospec
