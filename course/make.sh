#!/bin/sh
# course/make.sh: makes the course, and judges what students wrote. `make course` and `make grade` call it, from the
# project's root, with make's variables in the environment.
#   make.sh starter    the starter tree, its grader, and the engine's own answers, which stay out of the starter
#   make.sh course     all that students get; SEED=2: with other recorded inputs, for another group
#   make.sh grade      judges the folder SUBMISSION (without it: the engine itself), all chapters or CHAPTER;
#                      SUBMISSIONS=folder: a class, a folder, tar or zip for each student, into folder.results
#   make.sh slides     the chapters' slides as pages, into build/slides; as PDF too, where chromium is
#   make.sh real       lets it decode with a real model, the one of `make chat`, once chapters 1, 2, 5 and 6 are right
# A submission is judged by the starter's grader and by the engine's own answers.
set -e
root=$PWD course=$BUILD/course reference=$PWD/$BUILD/reference
# Variables of make's command line (CXX) hold in what is called here, its other flags do not.
case ${MAKEFLAGS-} in *' -- '*) export MAKEFLAGS=" --no-print-directory -- ${MAKEFLAGS#* -- }" ;; *) unset MAKEFLAGS ;; esac

# judge FOLDER FILE: judges a submission; its results go into FILE.
judge() {
  (cd "$course" && exec build/grade --reference "$reference" --hide "$root" --submission "$1" --results "$2" \
    ${CHAPTER:+--chapter "$CHAPTER"} ${SEED:+--seed "$SEED"} $3)
}

# ----------------------------------------------------------------------------------------------------------------
# A class

# unpack ARCHIVE FOLDER: a submission as it was uploaded. Prints where its files lie.
unpack() {
  rm -rf "$2" && mkdir -p "$2"
  case $1 in *.zip) unzip -q "$1" -d "$2" ;; *) tar -xf "$1" -C "$2" ;; esac || return
  only=$(ls -A "$2")
  [ -d "$2/$only" ] && echo "$2/$only" || echo "$2"
}
# one NAME ENTRY: judges a student. NAME.json has the results, NAME.txt what a student sees too.
one() {
  rm -f "$results/$1.failed"
  folder=$2
  status=0
  { [ -d "$2" ] || folder=$(unpack "$2" "$BUILD/unpacked"); } >"$results/$1.txt" 2>&1 || status=2
  [ $status = 2 ] || (judge "$(realpath "$folder")" "$results/$1.json" --keep) >"$results/$1.txt" 2>&1 || status=$?
  [ $status -le 1 ] || cp "$results/$1.txt" "$results/$1.failed"
}
class() {
  SUBMISSIONS=${SUBMISSIONS%/}
  [ -d "$SUBMISSIONS" ] || { echo "make grade: SUBMISSIONS=$SUBMISSIONS is no folder"; exit 2; }
  results=$(realpath -ms "${RESULTS:-$SUBMISSIONS.results}") done=0 began=$(date +%s)
  mkdir -p "$results"
  [ "$BUILD/table" -nt course/teacher/table.cpp ] || $CXX -std=c++17 -O1 -I. course/teacher/table.cpp -o "$BUILD/table"
  # The same inputs for the whole class.
  SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
  set -- "$SUBMISSIONS"/*
  [ -e "$1" ] || { echo "make grade: $SUBMISSIONS is empty"; exit 2; }
  all=$#
  trap 'echo; echo "$done of $all are graded: $results/class.csv has them"; exit 130' INT TERM HUP
  for entry; do
    name=$(basename "$entry")
    case $name in *.zip | *.tar | *.tgz) name=${name%.*} ;; *.tar.*) name=${name%.tar.*} ;; esac
    one "$name" "$entry"
    "$BUILD/table" "$results"
    done=$((done + 1))
    left=$((($(date +%s) - began) * ($# - done) / done))
    printf '%4d/%d  %-24s %s  (%d min %02d s left)\n' $done $# "$name" \
      "$(tail -1 "$results/$name.txt" | sed 's/;.*//')" $((left / 60)) $((left % 60))
  done
  echo
  echo "The commonest mistakes:"
  head -40 "$results/mistakes.txt"
  echo
  [ ! -s "$results/race.txt" ] || { echo "The race:"; cat "$results/race.txt"; echo; }
  echo "$results has class.csv, mistakes.txt, and of each student what to send back, NAME.txt, and NAME.json,"
  echo "for the points of predictions and questions; seed $SEED (SEED=$SEED: the same inputs again)"
}

# ----------------------------------------------------------------------------------------------------------------
# Slides: lowdown makes HTML of a text; a line --- begins the next slide

slides() {
  command -v lowdown >/dev/null || { echo "make slides: there is no lowdown: apt-get install lowdown"; exit 1; }
  mkdir -p "$BUILD/slides" && cp -r course/pictures "$BUILD/slides/"
  for text in course/teacher/slides/*.md; do
    page=$BUILD/slides/$(basename "$text" .md)
    {
      printf '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>%s</title><style>\n' \
        "$(sed -n '1s/^# //p' "$text")"
      cat course/teacher/slides/slides.css
      printf '</style></head><body><section>\n'
      lowdown -thtml "$text" | sed -e 's|<hr/>|</section><section>|' -e 's|\.\./\.\./pictures|pictures|'
      printf '</section></body></html>\n'
    } >"$page.html"
    ! command -v chromium >/dev/null || timeout 60 chromium --headless $([ "$(id -u)" != 0 ] || echo --no-sandbox) --disable-gpu --no-pdf-header-footer \
      --print-to-pdf="$page.pdf" "file://$(realpath "$page.html")" 2>/dev/null
    ls "$page".*
  done
}

# ----------------------------------------------------------------------------------------------------------------

if [ "$1" = slides ]; then slides && exit; fi
[ "$1" != course ] || sh data/deps.sh
make -s "$BUILD/make_course"
"$BUILD/make_course" starter "$course" >/dev/null
make -s -C "$course" deps
make --no-print-directory -j"$JOBS" -C "$course" build/grade
chapters=
for chapter in $(sed -n 's/^CHECKS := //p' course/starter/Makefile); do chapters="$chapters $reference/chapter$chapter"; done
make --no-print-directory -s -j"$JOBS" -C "$course" B="$reference" FROM="$root" $chapters

case $1 in
  course)
    echo "The engine itself is graded, to record right answers:"
    mkdir -p "$course/course/recorded"
    (cd "$course" && build/grade --record --reference "$reference" --submission "$root" ${SEED:+--seed "$SEED"})
    tar -czf "$BUILD/course.tar.gz" --exclude=course/build --exclude=course/results.json -C "$BUILD" course
    echo "$BUILD/course.tar.gz is what students get; make grade SUBMISSION=folder judges what comes back" ;;
  grade)
    if [ -n "${SUBMISSIONS-}" ]; then class
    else judge "$(realpath -ms "${SUBMISSION:-.}")" "$(realpath -ms "${RESULTS:-$BUILD/results.json}")" ""; fi ;;
  real)
    submission=$(realpath -ms "${SUBMISSION:-.}") model=$root/models/SmolLM2-135M-Instruct.Q4_1.gguf of=$BUILD/real
    [ -s "$model" ] || { echo "no real model is here, so none was run: make chat gets it, into models/"; exit 0; }
    CHAPTER="1 2 5 6"
    judge "$submission" build/real.json "" || { echo "make real: it needs all points of chapters $CHAPTER first"; exit 1; }
    rm -rf "$of" && mkdir -p "$of" && cp ./*.h ./*.cuh "$of"
    for folder in archive course drafters files forest growth machine rules; do cp -r $folder "$of"; done
    "$BUILD/make_course" student "$submission" "$of" $CHAPTER
    echo "compiling a student's engine ..."
    ${CXX:-g++} -std=c++17 -O3 -DPORTABLE -I"$of" -ffp-contract=off -fno-math-errno -march="${ARCH:-native}" -pthread \
      "$of/course/teacher/real.cpp" -o "$of/real" -lmd -lpcre2-8 -lunistring
    "$of/real" "$model" ;;
esac
