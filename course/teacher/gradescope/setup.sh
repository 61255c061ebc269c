#!/bin/sh
# Gradescope runs this once, when it makes the autograder's image. In the zip beside it: run_autograder, and the project
# as project.tar.gz (git archive HEAD | gzip).
set -e
apt-get update -qq
apt-get install -y -qq --no-install-recommends g++ make nlohmann-json3-dev doctest-dev libmd-dev libxxhash-dev libpcre2-dev
mkdir -p /autograder/project && tar -xzf /autograder/source/project.tar.gz -C /autograder/project
cd /autograder/project && make starter ARCH=x86-64-v3
