#!/bin/sh
# data/alive.sh: runs a command; every nine seconds it says where that is, if it is still where it was.
#   alive.sh WHERE COMMAND...    WHERE: a command that prints where COMMAND is. The exit status is COMMAND's.
where=$1
shift
{
  was=$(eval "$where")
  # No longer than this shell lives: a Ctrl-C does not reach what a shell has in the background.
  while sleep 9 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    now=$(eval "$where")
    [ "$now" != "$was" ] || [ -z "$now" ] || echo "$now ..."
    was=$now
  done
} &
heart=$!
"$@"
status=$?
kill $heart 2>/dev/null
exit $status
