#!/bin/sh
# data/compare.sh: the small model writes a text; then plain and speculative decoding of the same prompts are compared.
# The end of `make run`, which says in BUILD where the programs are.
set -e
"$BUILD/nanospec" generate --model runs/small --prompt "ROMEO:" --max_new_tokens 300 --quiet
printf '\n\n'
"$BUILD/nanospec" compare --model runs/small --prompts data/prompts.jsonl \
  --methods "none; bigram chain:4; bigram tree:3x2; bigram auto; ngram:4 auto" \
  --json runs/small/compare.json --svg runs/small/compare.svg
cat <<'END'

written    runs/small: the model; runs/small/compare.svg: this table as a picture, .json: every run of it
next       build/nanospec generate --model runs/small --prompt "JULIET:" --drafter ngram:4
           build/nanospec show --model runs/small --prompt "ROMEO:" --html build/show.html
           make chat: talk with a real model; make test: the proof; README.md: how it works
END
