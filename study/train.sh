#!/bin/sh
# study/train.sh: trains what is missing, for `make run`, `make drafter` and `make experiments`, which say in BUILD where
# the programs are.
#   train.sh heads       heads for the model of `make chat`, on texts that it writes
#   train.sh small       the small model, runs/small
#   train.sh drafters    the target of the experiments, runs/medium, and the drafters that it teaches
#   train.sh accuracy    how often each drafter is right on the target: shapes `sequoia` and `calibrated` want that
# A model whose training was stopped goes on where it was; what has ended is not repeated.
set -e
medium=runs/medium
chat=models/SmolLM2-135M-Instruct.Q4_1
text=data/tinyshakespeare.txt
[ -e $text ] || text=data/shakespeare.txt

model() { # DIR FLAGS...
  dir=$1 && shift
  if [ -s "$dir/optimizer.safetensors" ]; then set -- "$@" --resume; fi
  "$BUILD/train_gpt" --data $text --out "$dir" --stats "$dir/train.json" "$@"
}
drafter() { # STATS FLAGS...
  stats=$1 && shift
  "$BUILD/train_drafter" --data $text --overwrite --stats "$stats" "$@"
}
# Weights are written as training goes on: a file beside them says that it has not ended.
once() { # WEIGHTS UNFINISHED COMMAND...
  [ ! -s "$1" ] || [ -e "$2" ] || return 0
  unfinished=$2
  mkdir -p "$(dirname "$2")" && touch "$2" && shift 2
  "$@"
  rm "$unfinished"
}
calibrate() { # DRAFTER TEMPERATURE...
  drafter=$1 && shift
  for temperature in "$@"; do
    "$BUILD/nanospec" calibrate --model $medium --drafter "$drafter" --temperature "$temperature" --quiet >/dev/null ||
      echo "not calibrated: $drafter at temperature $temperature"
  done
}

for what in "$@"; do
  case $what in
    small) [ -s runs/small/train.json ] || model runs/small ;;
    drafters)
      once $medium/model.safetensors $medium/unfinished \
        model $medium --preset medium --max_iters 2000 --lr_decay_iters 2000 --dropout 0.1
      once $medium/medusa.safetensors $medium/medusa.unfinished \
        drafter $medium/medusa.json --medusa $medium --medusa_root --medusa_tokens 131072 --eval_interval 250
      once $medium/parallel.safetensors $medium/parallel.unfinished \
        drafter $medium/parallel.json --parallel $medium --eval_interval 200
      once $medium/sequential/parallel.safetensors $medium/sequential/unfinished \
        drafter $medium/sequential/parallel.json --parallel $medium --eval_interval 200 --parallel_sequential \
        --max_iters 800 --out $medium/sequential ;;
    heads)
      "$BUILD/nanospec" distill --model $chat.gguf --tokens 800k --out $chat.said.jsonl
      begun=$chat/hydra-optimizer.safetensors
      if [ ! -s $begun ]; then set --; elif [ $begun -nt $chat.said.jsonl ]; then set -- --resume; else set -- --overwrite; fi
      "$BUILD/train_drafter" --hydra $chat.gguf --data $chat.said.jsonl --epochs 1 "$@" ;;
    accuracy)
      for name in bigram ngram:4 suffix+ngram:4 gpt:runs/small; do calibrate $name 0 0.4 0.7 1; done
      for name in medusa parallel parallel:$medium/sequential; do calibrate $name 0 0.7 1; done ;;
  esac
done
