#!/bin/sh
# course/make.sh: makes the course, and judges what students wrote. `make course` and `make grade` call it, from the
# project's root, with make's variables in the environment.
#   make.sh starter    the starter tree, its grader, and the engine's own answers, which stay out of the starter
#   make.sh course     all that students get
#   make.sh grade      judges the folder SUBMISSION (without it: the engine itself), all chapters or CHAPTER
#   make.sh real       lets it decode with a real model, the one of `make chat`, once chapters 1, 2, 5 and 6 are right
# A submission is judged by the starter's grader and by the engine's own answers.
set -e
root=$PWD course=$BUILD/course reference=$PWD/$BUILD/reference
# Variables of make's command line (CXX) hold in what is called here, its other flags do not.
case ${MAKEFLAGS-} in *' -- '*) export MAKEFLAGS=" --no-print-directory -- ${MAKEFLAGS#* -- }" ;; *) unset MAKEFLAGS ;; esac

[ "$1" != course ] || sh data/deps.sh
make -s "$BUILD/make_course"
"$BUILD/make_course" starter "$course" >/dev/null
make -s -C "$course" deps
make --no-print-directory -j"$JOBS" -C "$course" build/grade
chapters=
for chapter in 1 2 4 5 6 10 11; do chapters="$chapters $reference/chapter$chapter"; done
make --no-print-directory -s -j"$JOBS" -C "$course" B="$reference" FROM="$root" $chapters

case $1 in
  course)
    echo "The engine itself is graded, to record right answers:"
    mkdir -p "$course/course/recorded"
    (cd "$course" && build/grade --record --reference "$reference" --submission "$root")
    tar -czf "$BUILD/course.tar.gz" --exclude=course/build --exclude=course/results.json -C "$BUILD" course
    echo "$BUILD/course.tar.gz is what students get; make grade SUBMISSION=folder judges what comes back" ;;
  grade)
    submission=$(realpath -ms "${SUBMISSION:-.}") results=$(realpath -ms "${RESULTS:-$BUILD/results.json}")
    cd "$course"
    build/grade --reference "$reference" --hide "$root" --submission "$submission" --results "$results" \
      ${CHAPTER:+--chapter "$CHAPTER"} ;;
  real)
    submission=$(realpath -ms "${SUBMISSION:-.}") model=$root/models/SmolLM2-135M-Instruct.Q4_1.gguf of=$BUILD/real
    [ -s "$model" ] || { echo "no real model is here, so none was run: make chat gets it, into models/"; exit 0; }
    (cd "$course" && build/grade --reference "$reference" --hide "$root" --submission "$submission" \
      --results build/real.json --chapter "1 2 5 6") || { echo "make real: these chapters need all their points first"; exit 1; }
    rm -rf "$of" && mkdir -p "$of" && cp ./*.h ./*.cuh "$of"
    for folder in course drafters files forest growth machine rules; do cp -r $folder "$of"; done
    "$BUILD/make_course" student "$submission" "$of"
    echo "compiling a student's engine ..."
    ${CXX:-g++} -std=c++17 -O3 -DPORTABLE -I"$of" -ffp-contract=off -fno-math-errno -march=native -pthread \
      "$of/course/teacher/real.cpp" -o "$of/real" -lmd -lpcre2-8 -lunistring
    "$of/real" "$model" ;;
esac
