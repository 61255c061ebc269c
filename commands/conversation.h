// commands/conversation.h: a conversation as tokens, and a text that is shown while it grows. It needs no engine.
//
// In order: the tokens that end a text; the templates, which are how models were taught to tell questions from answers;
// the conversation; the text. What a person types is always plain text: it never becomes a control token, whatever it
// says.
//
// Templates in files are programs (Jinja). None is run: those of kChatForms are recognized by what they contain, and
// every other counts as not known. How to add one: a row there, and a test in tests/commands/test_conversation.cpp.
#pragma once

#include <optional>

#include "files/bpe.h"

namespace nanospec {

using Tokens = std::vector<int>;
inline Tokens followed_by(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

constexpr const char *kTurnBegin = "<|im_start|>", *kTurnEnd = "<|im_end|>";  // the marks of ChatML

// ---------------------------------------------------------------------------------------------------------------
// The end of a text

// With these tokens chats and documents end, in ChatML and with Llama 2 and 3, also where a file names no end.
constexpr const char* kTextEnds[] = {"<|endoftext|>", kTurnEnd, "</s>", "<|end_of_text|>", "<|eot_id|>"};

inline bool is_among(const Tokens& tokens, int token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// The tokens that end a text: what the files call its ends, and those of kTextEnds that are special in it.
inline Tokens end_tokens(const Tokenizer& tokenizer) {
  Tokens ends, known = tokenizer.ends;
  if (!tokenizer.bpe) return ends;
  for (const char* name : kTextEnds) known.push_back(tokenizer.bpe->special(name));
  for (int id : known)
    if (id >= 0 && id < tokenizer.vocab_size() && !is_among(ends, id)) ends.push_back(id);
  return ends;
}

// ---------------------------------------------------------------------------------------------------------------
// The templates

// What stands around the texts of a chat. {} is a text; what is among `controls` is a token.
struct ChatForm {
  const char* name;
  std::vector<const char*> controls;          // the vocabulary has them, and no user's text may
  const char *system, *before, *after, *end;  // before, after: of a question; end: of an answer
  bool strips;                                // white space around a text goes
  std::vector<const char*> signs;             // what the template's source contains
  const char* before_system = "";             // stands before the system text, also where there is none
  const char* answer = "{}";                  // one that somebody wrote
  bool strips_answers = strips;
  // Where the system text is a part of a question: it, then the question. That is the first one, or the last.
  const char* with_system = nullptr;
  bool in_last = false;
};
// Llama 3.1 to 3.3 say a date: of 3.1 this one; later ones ask the clock, which a text must not depend on.
constexpr const char *kDated = "Cutting Knowledge Date: December 2023",
                     *kDate = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
inline ChatForm llama3(const char* name, const char* sign, const char* before_system) {
  return {name,
          {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
          "<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>",
          "<|start_header_id|>user<|end_header_id|>\n\n",
          "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
          "<|eot_id|>",
          true,
          {"<|start_header_id|>", "<|eot_id|>", sign},
          before_system};
}
// marks: whether "[INST]" is a control; the system text is then in the last question.
inline ChatForm mistral(const char* before, const char* after, const char* answer, bool marks = false) {
  std::vector<const char*> controls = {"</s>"};
  if (marks) controls = {"[INST]", "[/INST]", "</s>"};
  return {"Mistral", controls, "", before, after, "</s>", false, {before}, "", answer, marks, "{}\n\n{}", marks};
}
inline const std::vector<ChatForm> kChatForms = {
    {"ChatML",  // of Qwen and SmolLM2 too
     {kTurnBegin, kTurnEnd},
     "<|im_start|>system\n{}<|im_end|>\n",
     "<|im_start|>user\n",
     "<|im_end|>\n<|im_start|>assistant\n",
     "<|im_end|>\n",
     false,
     {kTurnBegin, kTurnEnd}},
    llama3("Llama 3.1", kDated, kDate),
    llama3("Llama 3", "", ""),
    {"Llama 2",  // each turn is a text of its own
     {"<s>", "</s>"},
     "",
     "<s>[INST] ",
     " [/INST]",
     " </s>",
     true,
     {"<<SYS>>", "[INST]"},
     "",
     " {}",
     true,
     "<<SYS>>\n{}\n<</SYS>>\n\n{}"},
    mistral("[INST] ", "[/INST]", " {}", true),  // 0.3
    mistral(" [INST] ", " [/INST]", " {}"),      // 0.2, and 0.1 later on
    mistral("[INST] ", " [/INST]", "{}"),        // at first
};
// The texts alone, line after line: where no template is known.
inline const ChatForm kLines = {"none", {}, "{}\n", "", "\n", "\n", false, {}};

struct ChatTemplate {
  const ChatForm* form = &kLines;
  std::string system;  // the text that comes first where nobody gives another
};

// The system text that a ChatML template has by itself: a text that it names in quotes, with nothing to fill in.
inline std::string default_system(const std::string& source) {
  const std::string begin = std::string(kTurnBegin) + "system";
  for (size_t at = source.find(begin); at != std::string::npos; at = source.find(begin, at + 1)) {
    const char quote = at > 0 ? source[at - 1] : 0;
    const size_t from = at + begin.size(), end = source.find(kTurnEnd, from);
    if (end == std::string::npos) break;
    if ((quote != '\'' && quote != '"') || source.find(quote, from) < end) continue;
    const std::string text = replaced(source.substr(from, end - from), "\\n", "\n");
    if (text[0] == '\n') return text.substr(1);
  }
  return "";
}

// Whether a template's source contains what those of this form do.
inline bool is_like(const std::string& source, const ChatForm& form) {
  const auto says = [&](const char* sign) { return source.find(sign) != std::string::npos; };
  return std::all_of(form.signs.begin(), form.signs.end(), says);
}

// What a model's files say of it; "": nothing.
inline ChatTemplate read_template(const Tokenizer& tokenizer) {
  const std::string& source = tokenizer.chat_template;
  const auto knows = [&](const char* mark) {
    const int id = tokenizer.bpe ? tokenizer.bpe->special(mark) : -1;
    return id >= 0 && tokenizer.bpe->type(id) == TokenType::control;
  };
  for (const ChatForm& form : kChatForms)
    if (is_like(source, form) && std::all_of(form.controls.begin(), form.controls.end(), knows))
      return {&form, default_system(source)};
  return {};
}

// ---------------------------------------------------------------------------------------------------------------
// The conversation

// The system text, then turns: each is a question and its answer. Its tokens only grow, until a turn is dropped or the
// system text moves to the last question. An answer stays the tokens that the model chose: the same text might have
// others.
class Conversation {
 public:
  // system: the text that comes first; "": none. The tokenizer must outlive it. Throws what Tokenizer::encode throws.
  Conversation(const Tokenizer& tokenizer, const ChatForm& form, const std::string& system)
      : tokenizer_(tokenizer), form_(form), ends_(end_tokens(tokenizer)), system_(system) {
    if (tokenizer.begin >= 0 && !is_here(kBegin, form.before)) first_.push_back(tokenizer.begin);
    const std::string all = form.before_system + stripped(system, form.strips);
    if (!all.empty() && !form.with_system)
      first_ = followed_by(first_, written(first_, form.system, all, "the system text"));
  }

  // Begins a turn: tokens() then end where its answer begins. Throws what Tokenizer::encode throws; nothing has changed
  // then.
  void ask(const std::string& question) {
    const auto asked = [&](const std::string& text) {
      return written(tokens(), std::string(form_.before) + "{}" + form_.after, stripped(text, form_.strips),
                     "the question");
    };
    const Tokens alone = asked(question);
    const bool within = form_.with_system && !system_.empty();  // the system text
    turns_.push_back({alone, within ? asked(filled(form_.with_system, system_, question)) : alone, {}});
  }
  // Ends the turn, with the answer's tokens. The token that ended it may be among them, as the last.
  void answer(Tokens tokens) {
    if (!tokens.empty() && is_among(ends_, tokens.back())) tokens.pop_back();
    Turn& turn = turns_.back();
    turn.answer = followed_by(tokens, written(followed_by(turn.question, tokens), form_.end));
  }
  // The same, with an answer that somebody wrote.
  void answer(const std::string& text) {
    answer(written(turns_.back().question, form_.answer, stripped(text, form_.strips_answers), "an answer"));
  }
  // A model may ask itself, where the template ends a question with a token that ends a text. Then this is what its
  // question follows; and with the question's tokens, all that its answer follows.
  bool may_ask_itself() const {
    return std::any_of(form_.controls.begin(), form_.controls.end(), [&](const char* mark) {
      return is_here(mark, form_.after) && is_among(ends_, tokenizer_.bpe->special(mark));
    });
  }
  Tokens before_question() const { return followed_by(first_, written(first_, form_.before)); }
  Tokens after_question(const Tokens& question) const {
    const Tokens all = followed_by(before_question(), question);
    return followed_by(all, written(all, form_.after));
  }
  // Forgets the last turn.
  void take_back() { turns_.pop_back(); }
  // Forgets all turns; the system text stays.
  void reset() { turns_.clear(); }

  // Drops as few of the oldest turns as it takes to have at most so many tokens, and returns how many these were. The
  // system text and the last turn stay: where these alone are more, it drops nothing and returns -1.
  int fit(int most) {
    if (least() > most) return -1;
    int dropped = 0;
    for (; int(tokens().size()) > most; dropped++) turns_.erase(turns_.begin());
    return dropped;
  }

  Tokens tokens() const {
    Tokens all = first_;
    for (const Turn& turn : turns_) {
      const bool has_system = &turn == (form_.in_last ? &turns_.back() : &turns_.front());
      all = followed_by(all, followed_by(has_system ? turn.with_system : turn.question, turn.answer));
    }
    return all;
  }
  int turns() const { return int(turns_.size()); }
  // Tokens of the system text and the last turn.
  int least() const {
    return int(first_.size() + (turns_.empty() ? 0 : turns_.back().with_system.size() + turns_.back().answer.size()));
  }

 private:
  struct Turn {
    Tokens question, with_system;  // without the system text, and with it
    Tokens answer;
  };
  static constexpr const char* kBegin = "<s>";

  static bool is_here(std::string_view mark, std::string_view text) { return text.substr(0, mark.size()) == mark; }
  static std::string stripped(const std::string& text, bool strips) {
    const char* const white = " \t\n\v\f\r";
    const size_t first = text.find_first_not_of(white);
    if (!strips) return text;
    return first == text.npos ? "" : text.substr(first, text.find_last_not_of(white) - first + 1);
  }

  // What the template writes around a text, behind these tokens. What stands between two controls is encoded as one
  // text: a line end may join what follows it.
  Tokens written(const Tokens& before, std::string_view around, const std::string& text = "",
                 const std::string& what = "the template") const {
    Tokens tokens;
    std::string plain;
    const auto end_plain = [&] {
      const Tokens& last = tokens.empty() ? before : tokens;
      Begins begins = Begins::nothing;
      if (!last.empty() && tokenizer_.bpe && tokenizer_.bpe->type(last.back()) != TokenType::normal)
        begins = Begins::part;
      const bool begins_lines = form_.controls.empty() && last == Tokens{tokenizer_.begin};  // as a prompt alone does
      if (last.empty() || begins_lines) begins = Begins::text;
      if (!plain.empty()) tokens = followed_by(tokens, tokenizer_.encode(plain, what, begins));
      plain.clear();
    };
    for (size_t used; !around.empty(); around.remove_prefix(used)) {
      used = 1;
      const auto control = std::find_if(form_.controls.begin(), form_.controls.end(),
                                        [&](const char* mark) { return is_here(mark, around); });
      if (control != form_.controls.end()) {
        end_plain();
        tokens.push_back(tokenizer_.bpe->special(*control));
        used = strlen(*control);
      } else if (is_here("{}", around)) {
        plain += text;
        used = 2;
      } else plain += around[0];
    }
    end_plain();
    return tokens;
  }

  const Tokenizer& tokenizer_;
  const ChatForm& form_;
  const Tokens ends_;
  const std::string system_;
  Tokens first_;  // before all turns: the begin token, the system text where it stands alone
  std::vector<Turn> turns_;
};

// A conversation by the template of a model's file, with the system text that was asked for, or else the template's
// own. Says where the template is not known. Throws what Tokenizer::encode throws.
inline Conversation begin_conversation(const Tokenizer& tokenizer, const std::string& model,
                                       const std::optional<std::string>& system) {
  const ChatTemplate known = read_template(tokenizer);
  if (known.form == &kLines)
    note(tokenizer.chat_template.empty() ? "it has no chat template" : "its chat template is not known",
         printable(model, 300), "the model continues plain lines of text; expect no answers");
  return Conversation(tokenizer, *known.form, system.value_or(known.system));
}

// ---------------------------------------------------------------------------------------------------------------
// A text that is shown while it grows
//
// Tokens bring bytes, and a token may end inside a character, or inside a text that ends the generation (--stop). So
// bytes are held back until it is sure that they are shown. All that is shown, end to end, does not depend on where
// tokens end.

class ShownText {
 public:
  // stops: the text ends before the first of these that it contains; none is empty.
  explicit ShownText(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // Takes more bytes of the text; returns what may be shown now, whole characters. After a stop it takes nothing.
  std::string put(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size() && !stopped_; i++) {
      held_ += bytes[i];
      const size_t stop = stop_at_end(true);
      stopped_ = stop > 0;
      held_.resize(held_.size() - stop);
    }
    return release(stopped_ ? 0 : stop_at_end(false));
  }
  // Returns what is left at the text's end. The beginning of a character that never ended is left out.
  std::string finish() { return release(0); }

  bool stopped() const { return stopped_; }

 private:
  // How many bytes at the end are a whole stop, or may become one; of several the longest.
  size_t stop_at_end(bool whole) const {
    size_t most = 0;
    for (const std::string& stop : stops_)
      for (size_t n = std::min(held_.size(), stop.size() - !whole); n > most && (!whole || n == stop.size()); n--)
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) most = n;
    return most;
  }
  std::string release(size_t keep) {
    const std::string ready = held_.substr(0, held_.size() - keep);
    held_.erase(0, ready.size());
    return characters_.put(ready);
  }

  const std::vector<std::string> stops_;
  Utf8Stream characters_;
  std::string held_;  // bytes that may be the beginning of a stop
  bool stopped_ = false;
};

}  // namespace nanospec
