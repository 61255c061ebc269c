#!/bin/sh
# tests/reference/questions.sh: how many of the simple questions in data/questions.jsonl a model answers right.
#
#   sh tests/reference/questions.sh --model FILE.gguf [any flag of nanospec chat]
#
# Each is asked in a conversation of its own. An answer of at most 64 tokens is right where it has the right word, or
# one of them ("7|seven"). It prints the wrong ones; then how many of the first 50 are right, by which make chat's
# settings were chosen, and how many of the other 50; and how fast they came.
set -eu
questions=data/questions.jsonl
form='^{"prompt": "\(.*\)", "answer": "\(.*\)"}$'
{ sed "s/$form/\1\n\/reset/" $questions; echo /stats; } | build/nanospec chat --max_new_tokens 64 "$@" 2>&1 |
  table="$(sed "s/$form/\1\t\2/" $questions)" awk '
    function words(text) { gsub(/[ .,;:!?"()*°-]+/, " ", text); return " " tolower(text) " " }
    BEGIN { all = split(ENVIRON["table"], lines, "\n") }
    /^note: / || /^loading / || /^the answer was cut after/ { next }
    /^the conversation is forgotten$/ {
      split(lines[++asked], parts, "\t"); good = 0
      for (n = split(parts[2], known, "|"); n > 0; n--) if (index(words(text), words(known[n]))) good = 1
      right[asked > 50] += good; if (!good) print "wrong: " parts[1] text
      text = ""; next
    }
    /^[0-9]+ answers: / { speed = $0 }
    { text = text " " $0 }
    END { print right[0] + 0 " of the first 50 right, " right[1] + 0 " of the other " all - 50 "; " speed; exit asked != all }'
