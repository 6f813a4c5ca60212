#!/bin/bash
# Runs in a booted systemd, beside a program at work, and checks what the units promise.

. /xrayd-test/checks.sh

result "the socket listens, and no daemon runs" \
    eval 'systemctl is-active --quiet xrayd.socket && ! systemctl is-active --quiet xrayd.service'
result "a client starts the daemon" xrayctl attach "$pid" --mode stream
result "the daemon reports that it is ready" systemctl is-active --quiet xrayd.service
xrayctl attach "$rest" --mode stream > /dev/null
result "functions are switched on" xrayctl enable --all
result "the program is traced" goes_on
touch /tmp/go
within_a_minute grep -q result /tmp/worked
sleep 1
worked=$(retained)
result "events are retained" [ "$worked" -gt 1000 ]
result "only root may read the state" [ "$(stat --format=%a /var/lib/xrayd)" = 700 ]

first=$(main_pid)
systemctl kill --signal=KILL xrayd.service
result "a killed daemon is started anew" within_a_minute is_another "$first"
result "and goes on" goes_on
result "with the retained events" keeps_events

second=$(main_pid)
result "a restart succeeds" systemctl restart xrayd.service
result "a restart is another process" is_another "$second"
result "a restart detaches from nothing" \
    eval 'logged "left to the next daemon" && ! logged "detached pid"'
result "and goes on" goes_on
result "with the retained events" keeps_events

third=$(main_pid)
result "a reload succeeds" systemctl reload xrayd.service
result "a reload executes the program anew" \
    within_a_minute eval '[ "$(times_logged "went on with the sessions")" -ge 3 ]'
result "in the same process" [ "$(main_pid)" = "$third" ]
result "and goes on" goes_on
result "with the retained events" keeps_events

cp /usr/bin/xrayd /usr/bin/xrayd.new && mv /usr/bin/xrayd.new /usr/bin/xrayd
result "the old program is gone" eval 'readlink "/proc/$(main_pid)/exe" | grep -q deleted'
systemctl reload xrayd.service
result "a reload executes the new program" \
    within_a_minute eval '! readlink "/proc/$(main_pid)/exe" | grep -q deleted'
result "and goes on" goes_on
result "with the retained events" keeps_events

mkdir -p /run/systemd/system/xrayd.service.d
printf '[Service]\nWatchdogSec=2s\n' > /run/systemd/system/xrayd.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart xrayd.service
sleep 6
result "the watchdog leaves a daemon alone that works" \
    eval '! journalctl --unit=xrayd.service | grep -q "Watchdog timeout"'
result "and goes on" goes_on
fourth=$(main_pid)
kill -STOP "$fourth"
result "the watchdog ends a daemon that hangs" within_a_minute is_another "$fourth"
result "and goes on" goes_on
result "with the retained events" keeps_events

mount --bind /var/lib/xrayd /var/lib/xrayd && mount -o remount,bind,ro /var/lib/xrayd
systemctl restart xrayd.service
result "a daemon starts although its state cannot be written" \
    within_a_minute systemctl is-active --quiet xrayd.service
umount /var/lib/xrayd
systemctl restart xrayd.service
xrayctl attach "$pid" --mode stream > /dev/null 2>&1
xrayctl enable --all > /dev/null
result "and goes on" goes_on

# A templated service, and a policy for its instances.
cat > /run/systemd/system/counted@.service <<UNIT
[Service]
ExecStart=/bin/bash -c "{ echo go; exec sleep infinity; } | $program"
Restart=always
RestartSec=100ms
UNIT
mkdir -p /etc/xrayd/policies.d
policy=/etc/xrayd/policies.d/counted.toml
cat > $policy <<POLICY
name = "counted"
[match]
unit = "counted@*.service"
exe = "/xrayd-test/program"
[trace]
mode = "profile"
enable = "*"
max_overhead = "2%"
POLICY
has() { xrayctl policy status counted | grep -q "$1 matched, $1 traced"; }
systemctl daemon-reload
systemctl start counted@1 counted@2
xrayctl policy reload > /dev/null
result "a policy traces the instances that are there" within_a_minute has 2
systemctl start counted@3
result "and one that starts later" within_a_minute has 3
instance() { systemctl show --value --property=MainPID "counted@$1.service"; }
before=$(instance 1)
systemctl restart counted@1
result "and one that is restarted" \
    eval '[ "$(instance 1)" != "$before" ] && within_a_minute has 3'
systemctl kill --signal=KILL counted@2
sleep 1
result "and one that has crashed" within_a_minute has 3
fifth=$(main_pid)
systemctl kill --signal=KILL xrayd.service
within_a_minute is_another "$fifth"
result "the policy outlives the daemon" within_a_minute has 3
echo "name = " > $policy
systemctl reload xrayd.service
result "a file with mistakes changes nothing" \
    eval 'within_a_minute has 3 && xrayctl policy status counted | grep -q "has mistakes"'
result "and the check says so" eval '! xrayctl status --check > /dev/null'

# Recordings, by the relay's unit, with a rule of access.
systemctl restart xrayd.service
cat > $policy <<POLICY
name = "counted"
[match]
unit = "counted@*.service"
exe = "/xrayd-test/program"
[trace]
mode = "profile"
enable = "*"
max_overhead = "2%"
[output]
every = "1s"
POLICY
xrayctl policy reload > /dev/null
systemd-sysusers xray-relay.conf
recordings() { xrayctl recordings list --json | grep -c '"name"'; }
systemctl start xray-relay.service
sleep 3
result "without a rule of access the relay records nothing" [ "$(recordings)" = 0 ]
cp /xrayd-test/access.toml /etc/xrayd/access.toml
result "the rule is put in force" xrayctl access reload
result "the relay records each instance" within_a_minute eval '[ "$(recordings)" -ge 6 ]'
result "as files of its user" \
    [ "$(stat --format='%U %a' "$(find /var/lib/xray-relay -name '*.xtrace' ! -path '*/.*' | head -1)")" = "xray-relay 640" ]
systemctl kill --signal=KILL xray-relay.service
killed=$(recordings)
result "a relay that was killed goes on" within_a_minute eval '[ "$(recordings)" -gt $((killed + 3)) ]'
systemctl restart xrayd.service
restarted=$(recordings)
result "and so does one whose daemon is restarted" \
    within_a_minute eval '[ "$(recordings)" -gt $((restarted + 3)) ]'
result "nothing is missing" eval 'xrayctl recordings losses | grep -q "nothing is missing"'
result "the relay has no rights" \
    eval 'grep -q "^CapEff:\s*0000000000000000" "/proc/$(systemctl show --value --property=MainPID xray-relay.service)/status"'
result "the relay ends" systemctl stop xray-relay.service
rm $policy
xrayctl policy reload > /dev/null
result "without its file the policy has nothing on" \
    eval 'xrayctl policy list | grep -q "there are no policies" && ! xrayctl ps | grep "counted@" | grep -q traced'

result "a stop succeeds" systemctl stop xrayd.service
result "a stop detaches" logged "detached pid"
result "and leaves nothing on" shows ready
result "the program lives" kill -0 "$pid"
echo end
