#!/bin/sh
# tests/documents/run.sh: runs every command that a document shows, as typed, in a clean copy of this folder, in the
# order of the pages. Run it from the project's root, by `make documents`.
#
#   run.sh               all pages; the transcripts are compared
#   run.sh transcripts   only the commands of the transcripts, which are written into the pages
#   run.sh --here PAGE   one page, in this folder itself
#
# What a page says of a command, and how: commands.awk. A command that takes minutes is run in short, and so is a training
# of the target, but for that of `make run`; with NANOSPEC_PROVE=1 (make prove) to its end. What .ci/run itself runs is
# not run here. What needs a GPU is compiled. Some long ones take turns, by NANOSPEC_SEED, which the first line says.
#
# The copy has the tracked files as they are, the text, what is built, and stand-ins for what takes minutes to get: a
# folder `folder` of right answers to the course, a class `class` of one student, runs/medium, a tiny GGUF file for the
# real model. With NANOSPEC_PROVE=1, or where transcripts are written, the real ones are taken, where they are here.
set -u
tab=$(printf '\t')
root=$PWD
here=$root/tests/documents
prove=${NANOSPEC_PROVE:-0}
way=${1:-check}
real=models/SmolLM2-135M-Instruct.Q4_1.gguf
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
mkdir "$work/out"
: >"$work/shown"
passed=0 failed=0 skipped=0 run=0 short=0 compiled=0 elsewhere=0 again=0 turn=0 rest=0
seed=${NANOSPEC_SEED:-$(date +%s)}
[ "$prove$way" != 0check ] || echo "Of some long commands a quarter: NANOSPEC_SEED=$seed takes the same ones again."
# Variables of make's command line (CXX) hold in the copy too, its other flags do not.
case ${MAKEFLAGS-} in *' -- '*) export MAKEFLAGS=" -- ${MAKEFLAGS#* -- }" ;; *) unset MAKEFLAGS ;; esac
unset MAKELEVEL MFLAGS NANOSPEC_PROVE

# ----------------------------------------------------------------------------------------------------------------
# The copy

# clone FOLDER: the tracked files, with their times, so that make takes what was built for it.
clone() {
  git clone -q "$root" "$1" &&
    git ls-files -z | tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -xf - -C "$1" &&
    cp -p data/*shakespeare.txt "$1/data/"
}

set_up() {
  # Objects by nvcc may be half written, as .ci/run has them compiled meanwhile; without a GPU nothing here needs them.
  nvcc='*.cuda.*' && [ -z "${GPU-}" ] || nvcc=build/sanitize
  clone "$work/bare" && clone "$work/nanospec" && tar -cf - --exclude="$nvcc" --exclude=build/sanitize \
    --exclude=build/arm64 --exclude=build/peers --exclude=build/venv --exclude=build/witness --exclude='build/*.jsonl' \
    build |
    tar -xf - -C "$work/nanospec" || { echo "run.sh: the copy could not be made"; exit 1; }
  top=$work/nanospec
  cd "$top" || exit 1
  mkdir -p models runs folder/data class && ln -s ../folder class/anna
  cp --parents tree.h sample.h draft.h kernels.cuh gradients.cuh rules/verify.h growth/likeliest.h \
    growth/cost.h course/warps.cuh course/race.h folder/
  cp data/*shakespeare.txt folder/data/
  if [ "$prove$way" != 0check ] && [ -s "$root/$real" ]; then ln -s "$root/$real" models/
  else # with a context of 2,048 tokens, where it has 256
    cp tests/files/llama_plain.gguf $real
    at=$(grep -abo llama.context_length $real | cut -d : -f 1)
    printf '\000\010\000\000' | dd of=$real bs=1 seek=$((at + 24)) conv=notrunc 2>/dev/null
  fi
  if [ "$prove" = 1 ] && [ -s "$root/runs/medium/model.safetensors" ]; then cp -r "$root/runs/medium" runs/
  else build/train_gpt --data data/*shakespeare.txt --out runs/medium --n_layer 4 --n_embd 32 --block_size 256 \
    --max_iters 20 --quiet; fi
}

# ----------------------------------------------------------------------------------------------------------------
# The pages, in order: their commands, those in blocks first

pages() {
  ls README.md docs/README.md
  sed -n 's/^| \[[a-z]*\.md\](\([a-z]*\.md\)).*/docs\/\1/p' docs/README.md
  ls docs/*.md CONTRIBUTING.md course/README.md course/starter/README.md course/warmup.md course/chapter*.md course/teacher/*.md
}
page_commands() {
  for page in "$@"; do awk -v page="$page" -f "$here/commands.awk" "$page"; done
}
# The examples of a help as a page.
help_commands() {
  "$@" 2>&1 | awk '/^Examples:/ { print "```sh"; on = 1; next } on { print } END { if (on) print "```" }' |
    awk -v page="$*" -f "$here/commands.awk"
}
all_commands() {
  page_commands "$@"
  help_commands build/train_gpt --help
  help_commands build/train_drafter --medusa --help
  help_commands build/train_drafter --parallel --help
  for word in "" $(build/nanospec help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p') drafters shapes rules; do
    help_commands build/nanospec help $word
  done
  make -s single >/dev/null
  sed -n 's/^.*: \(nvcc .*\)/\1  # needs a GPU/; s/^.*: g++/g++/; /^\(g++\|nvcc\)/p' build/nanospec_single.cu |
    sed '1i```sh' | awk -v page=build/nanospec_single.cu -f "$here/commands.awk"
}

# ----------------------------------------------------------------------------------------------------------------
# Running

# Where a command's output lies.
output_of() { printf '%s/out/%s\n' "$work" "$(printf '%s' "$1" | cksum | tr ' ' -)"; }
say() { printf '%-9s %8s  %s  %s\n' "$1" "$2" "$place" "$command"; }
bad() {
  failed=$((failed + 1))
  printf 'failed: %s: %s: %s\n' "$place" "$command" "$1"
  [ ! -s "$out" ] || tail -5 "$out" | sed 's/^/    /'
}
# attempt SECONDS COMMAND: whether it ends with a status of $wanted; its output lies in $out.
attempt() {
  before=$(date +%s%N)
  (cd "$folder" && exec timeout -k 10 "$1" sh -c "$2") </dev/null >"$out" 2>&1
  status=$?
  took="$((($(date +%s%N) - before) / 1000000)) ms"
  case " $wanted " in *" $status "*) return 0 ;; esac
  return 1
}
# done_as KIND SECONDS COMMAND: runs it, and says so.
done_as() {
  if attempt "$2" "$3"; then
    passed=$((passed + 1))
    say "$1" "$took"
  elif [ "$status" = 124 ]; then bad "not done after $2 s: say in a comment what it takes"
  else bad "exit status $status, not ${wanted%% *}"; fi
}

# Where the reader of a page is.
folder_of() {
  case "$1 $2" in
    course/starter/* | course/warmup* | course/chapter* | *" make play" | *" make measure"*) echo "$top/build/course" ;;
    *) echo "$top" ;;
  esac
}
# Whether .ci/run runs the command, or make prove, which this is a part of.
elsewhere() {
  case $place in build/nanospec_single.cu:*) return 0 ;; esac # make test types them: tests/core/test_single.cpp
  case $1 in "make prove" | "make documents" | "make transcripts") return 0 ;; make\ * | build/*) ;; *) return 1 ;; esac
  case " $(grep -v '^ *#' "$root/.ci/run" 2>/dev/null | tr '\n;' '  ') " in *" $1 "*) return 0 ;; esac
  return 1
}
# Long ones that no other command needs and that seldom change: of each four a run takes one.
rests() {
  case $prove$command in
    0"make measure "* | 0"make grade "* | 0"make test T="* | 0*" exact --distributions "* | 0*" --only batch --model "* | \
      0*" --preset medium"* | 0"build/nanospec distill "*lines.jsonl) turn=$((turn + 1)) && [ $(((turn + seed) % 4)) != 0 ] ;;
    *) return 1 ;;
  esac
}
# What takes minutes, in short: a training, bench and experiments have a quick form, make -n reads a Makefile, and any
# other is begun.
long() {
  case $command in python3*) command -v python3 >/dev/null || { excused "no python3 here"; return; } ;; esac
  case $command in make*=*) folder=$work/bare ;; esac # another compiler, other flags: built from nothing
  if [ "$prove" = 1 ]; then run=$((run + 1)) && done_as run 10800 "$command"; return; fi
  short=$((short + 1))
  case $command in
    make*) done_as "make -n" 900 "make -n ${command#make}" ;;
    build/train_gpt*) done_as short 900 "$command --max_iters 3 --n_layer 1" ;;
    build/train_drafter\ --*\ models/*) done_as short 900 "$command --max_iters 3" ;;
    build/train_drafter\ --medusa*) done_as short 900 "$command --max_iters 3 --medusa_tokens 2000" ;;
    build/train_drafter*) done_as short 900 "$command --max_iters 3 --parallel_tokens 2000" ;;
    *bench* | *experiments*) done_as short 900 "$command --quick" ;;
    *) wanted="0 124"; done_as begun 1 "$command" ;;
  esac
}
# What needs a GPU: compiled where nvcc is; of a program of ours the flags are tried on the CPU's.
on_gpu() {
  case $command in
    nvcc*) command -v nvcc >/dev/null || { excused "no nvcc here"; return; }
      compiled=$((compiled + 1)); done_as compiled 900 "${command%% && *}" ;;
    build/*-cuda*)
      compiled=$((compiled + 1)) wanted="0 1 124"
      done_as compiled 1 "$(printf '%s' "$command" | sed 's/-cuda//')" ;;
    *) excused "$why" ;;
  esac
}
# What has an excuse: the files of the project that it names must be there.
excused() {
  for word in $command; do
    case $word in tests/* | data/*.sh) [ -e "$top/$word" ] || { bad "no file $word"; return; } ;; esac
  done
  skipped=$((skipped + 1))
  say excused "-"
}

each() {
  folder=$(folder_of "$place" "$command")
  case $folder in */course) cp -r "$top/folder/." "$folder/" ;; esac # the text, and a student's answers
  wanted=0
  out=$(output_of "$command")
  if grep -qxF -e "$folder$tab$command" "$work/shown"; then again=$((again + 1)); return; fi
  [ "$kind" = inline ] && case $command in make* | sh* | *" help "*) kind=run why=0 ;; *) kind=takes ;; esac
  printf '%s\t%s\n' "$folder" "$command" >>"$work/shown"
  if elsewhere "$command"; then elsewhere=$((elsewhere + 1)); passed=$((passed + 1)); say CI "-"; return; fi
  if [ "$kind" != fault ] && rests; then rest=$((rest + 1)) skipped=$((skipped + 1)); say rests "-"; return; fi
  case $kind in
    fault) bad "$why" ;;
    run) wanted=$why
      case $prove$command in
        0build/train_gpt*--max_iters*0*) # `make run` has trained to the end; this, a tenth of it
          short=$((short + 1)); done_as short 900 "$(printf '%s' "$command" | sed 's/\(--max_iters [0-9]*\)0/\1/')" ;;
        *) run=$((run + 1)); done_as run 900 "$command" ;;
      esac ;;
    takes) long ;;
    needs) case $why in "needs a GPU"*) on_gpu ;; *) excused "$why" ;; esac ;;
  esac
}
each_of() { while IFS=$tab read -r kind place why command; do each; done <"$1"; }

# ----------------------------------------------------------------------------------------------------------------
# Transcripts

# One of a page: run again, unless its command was, and compared or written.
transcript() {
  case $command in "make run"*) [ -s "$root/data/tinyshakespeare.txt" ] || { skipped=$((skipped + 1)); say "its text is not here" "-"; return; } ;; esac
  case $command in
    *"$real"* | *"make chat"*) [ -L "$top/$real" ] || { skipped=$((skipped + 1)) && say "no model" "-"; return; } ;;
  esac
  folder=$top wanted=0 out=$(output_of "$command")
  [ -e "$out" ] || attempt 1800 "$command" || { bad "exit status $status"; return; }
  printf '$ %s  # commit %s, %s\n' "$command" "$commit" "$(date +%F)" >"$work/made"
  awk -v job=excerpt -v rules="$rules" -f "$here/transcript.awk" "$out" >>"$work/made" ||
    { bad "$(tail -1 "$work/made")"; return; }
  if [ "$way" = transcripts ]; then
    awk -v job=put -v at="$line" -v file="$work/made" -f "$here/transcript.awk" "$page" >"$work/page" &&
      cat "$work/page" >"$page" && passed=$((passed + 1)) && say written "-"
    return
  fi
  awk -v job=block -v at="$line" -f "$here/transcript.awk" "$page" >"$work/typed"
  for side in typed made; do awk -v job=mask -f "$here/transcript.awk" "$work/$side" >"$work/$side.masked"; done
  if diff "$work/typed.masked" "$work/made.masked" >"$out"; then passed=$((passed + 1)); say same "-"
  else bad "this transcript is another now: make transcripts writes it"; fi
}

# ----------------------------------------------------------------------------------------------------------------
# All of it

# Each target that make help lists was run, or has its excuse.
targets() {
  make -s help | sed -n 's/^make \([a-z0-9]*\) .*/\1/p' | while read -r target; do
    case $target in all) line="make" ;; *) line="make $target" ;; esac
    elsewhere "$line" || grep -qE "$tab$line( |\$)" "$work/shown" || echo "$target"
  done
}

case $way in
  --here) top=$root && page_commands "$2" >"$work/all" && set -- "$2" ;;
  *) set_up && set -- $(pages | awk '!seen[$0]++') && if [ "$way" = check ]; then all_commands "$@"; fi >"$work/all" ;;
esac
# What else the pages name of the last, and the transcripts, want what it removes.
clean="${tab}make clean\$"
{ grep -v "^inline\|$clean" "$work/all"; grep '^inline' "$work/all" | grep -v "$clean"; } >"$work/list"
grep "$clean" "$work/all" >"$work/last"
each_of "$work/list"
cd "$root" || exit 1
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD -- ':!*.md' || commit="$commit with changes"
for page in "$@"; do
  awk -v job=list -f "$here/transcript.awk" "$page" | sort -rn | sed "s|^|$page$tab|"
done >"$work/transcripts"
while IFS=$tab read -r page line command rules; do place=$page:$line && transcript; done <"$work/transcripts"
each_of "$work/last"
if [ "$way" = check ]; then
  place=Makefile out=/dev/null
  for target in $(targets); do command="make $target" && bad "make help lists it, and nothing runs it"; done
fi
echo "$run run, $short in short (make prove: whole), $compiled compiled, $elsewhere by .ci/run or make prove itself,"
echo "$skipped skipped: $rest rest, the others say what they need; $again were seen before"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
