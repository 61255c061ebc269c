# tests/documents/commands.awk: the commands that a page shows, one a line: kind, page:line, reason, command, with tabs
# between. run.sh reads them.
#
#   awk -v page=NAME -f commands.awk FILE
#
# kind     the page says                                     reason
# run      nothing                                           0, or N of "# exit status N"
# takes    "# takes ...": minutes or hours                   the comment
# needs    "# needs ...": what no test has                   the comment
# inline   in `backquotes`, beginning as a command does      -
# fault    a fence without a word known, or unknown words    what is wrong
#
# A comment stands two blanks behind its command, or on a line of its own before commands, up to an empty line. Only the
# words below make an excuse of it. A line that ends in \ goes on in the next.
BEGIN {
  OFS = "\t"
  marked = -9  # the line of the last comment that makes a transcript
  split("sh text cpp python", words, " ")
  for (i in words) known[words[i]] = 1
  things = "a network|a terminal|a GPU|a package|a file of yours"
  programs = "generate|chat|compare|show|diagnose|perplexity|inspect|index|compress|decompress|verify|calibrate|exact|bench|experiments"
}

function say(kind, reason, command) { print kind, page ":" begin, reason, command }

# The kind of a command by its comment, and in `why` the reason.
function kind_of(comment) {
  why = "0"
  if (comment ~ /^exit status [0-9]+/) { why = substr(comment, 13) + 0; return "run" }
  if (comment ~ /^takes .*(minute|hour)/) { why = comment; return "takes" }
  if (comment ~ "^needs (" things ")") { why = comment; return "needs" }
  if (comment ~ /^(takes|needs|exit status) /) { why = "not known: # " comment; return "fault" }
  return "run"
}

/^ *```/ {
  begin = FNR
  word = $0
  sub(/^ *```/, "", word)
  if (fence != "") fence = above = ""
  else if (word in known) fence = word
  else { fence = "none"; say("fault", "a fence's word is one of sh, text, cpp, python", "```" word) }
  command = ""
  next
}

/^<!-- transcript: / {
  begin = marked = FNR
  if ($0 !~ /; keeps: .* -->$/) say("fault", "after the command stands ; keeps: and what", $0)
}
fence == "text" && FNR == begin + 1 && /^\$ / && marked + 2 < begin {
  say("fault", "a transcript has a comment before it, of which make transcripts makes it", $0)
}

fence == "sh" && /^ *(#|$)/ {
  above = $0
  sub(/^ *#? */, "", above)
  if (above !~ /^(takes|needs|exit status) /) above = ""
  next
}

fence == "sh" {
  if (command == "") { begin = FNR; comment = above }
  line = $0
  sub(/^ +/, "", line)
  if (match(line, /  +# /)) {
    comment = substr(line, RSTART + RLENGTH)
    line = substr(line, 1, RSTART - 1)
    if (comment !~ /^(takes|needs|exit status) /) comment = above
  }
  command = command (command == "" ? "" : " ") line
  if (sub(/ *\\$/, "", command)) next
  kind = kind_of(comment)
  say(kind, why, command)
  command = ""
}

# `build/nanospec bench` alone names a command; `bench --only train` is one, and leaves `build/nanospec` out.
fence == "" {
  begin = FNR
  count = split($0, parts, "`")
  for (i = 2; i <= count; i += 2) {
    command = parts[i]
    if (command ~ "^(" programs ") .*--(model|only) ") command = "build/nanospec " command
    if (command ~ /^(make( |$)|sh |python3 |build\/[^ ]+ --|build\/nanospec (help|[a-z]+ --))/)
      say("inline", "-", command)
    if (command ~ /^nanospec (help|[a-z]+ -)/) say("fault", "it is typed as build/nanospec", command)
  }
  command = ""
}
