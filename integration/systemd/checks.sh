# What the scenarios have in common: checks, and two processes of a program at work. Each line of a
# scenario's output is "ok WHAT" or "FAILED WHAT"; the last one is "end".
#
# The file /xrayd-test/program is a copy of the test program `counted`.

program="/xrayd-test/program --threads 2 --calls 0"

result() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@"; then echo "ok $what"; else echo "FAILED $what"; fi
}

# Repeats a command until it succeeds, for a minute at most.
within_a_minute() {
    for _ in $(seq 300); do
        "$@" && return
        sleep 0.2
    done
    return 1
}

main_pid() { systemctl show --value --property=MainPID xrayd.service; }
is_another() { [ "$(main_pid)" != "$1" ] && [ "$(main_pid)" != 0 ]; }
is_traced() {
    xrayctl status --pid "$pid" --json |
        grep -q '"functions_on": *20' && xrayctl ps --json | grep -q '"state": *"traced"'
}
shows() { xrayctl ps --json | grep -q "\"state\": *\"$1\""; }
events() { xrayctl status --pid "$pid" --json | sed -n 's/.*"events": *\([0-9]*\),.*/\1/p' | head -1; }
records() {
    local before
    before=$(events)
    within_a_minute eval '[ "$(events)" -gt "$before" ]'
}
# The number of retained events of the program that has done its work.
retained() {
    rm -f /tmp/rest.xtrace
    xrayctl snapshot "$rest" -o /tmp/rest.xtrace > /dev/null &&
        xrayctl report /tmp/rest.xtrace --json --limit 1 | sed -n 's/.*"events": *\([0-9]*\),.*/\1/p' | head -1
}
keeps_events() { [ "$(retained)" = "$worked" ] && [ "$worked" -gt 0 ]; }
logged() { journalctl --unit=xrayd.service --output=cat | grep -q "$1"; }
times_logged() { journalctl --unit=xrayd.service --output=cat | grep -c "$1"; }
goes_on() { within_a_minute is_traced && records; }

runs() { [ "$(readlink "/proc/$1/exe")" = /xrayd-test/program ]; }

{ echo go; exec sleep infinity; } | $program > /dev/null &
pid=$!
within_a_minute runs "$pid"

# Another process of it works once, as soon as it is traced.
once="/xrayd-test/program --threads 2 --calls 400"
{ until [ -e /tmp/go ]; do sleep 0.1; done; echo go; exec sleep infinity; } | $once > /tmp/worked &
rest=$!
within_a_minute runs "$rest"
