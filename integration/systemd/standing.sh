#!/bin/bash
# Runs in a booted systemd: a policy for twenty instances of a service and for another service, while
# everything happens to them that happens to services and to their hosts.
#
# The files /xrayd-test/service and /xrayd-test/service_next are two releases of a service in C++,
# and /xrayd-test/market is one in Rust. What the relay has written is copied to
# /xrayd-test/standing, beside the services' own numbers, for a check of all of it.

. /xrayd-test/checks.sh

instances=$(seq 20)
policy=/etc/xrayd/policies.d/checkout.toml
kept=/xrayd-test/standing
mkdir -p /srv/log /etc/xrayd/policies.d $kept
chmod 777 /srv/log
install /xrayd-test/service /srv/server
install /xrayd-test/market /srv/market
cat > /run/systemd/system/checkout@.service <<UNIT
[Service]
ExecStart=/srv/server --workers 2 --pause 2000 --slow-every 5000 --log /srv/log
User=nobody
Restart=always
RestartSec=200ms
StartLimitIntervalSec=0
UNIT
cat > /run/systemd/system/market.service <<UNIT
[Service]
ExecStart=/bin/bash -c "sleep infinity | exec /srv/market"
User=nobody
UNIT
write_policy() { # LINES BEFORE THE TABLES
    cat > $policy <<POLICY
name = "checkout"
$1
[match]
unit = ["checkout@*.service", "market.service"]
exe = ["/srv/server", "/srv/market"]
user = "nobody"
[trace]
mode = "profile"
enable = "*"
max_overhead = "2%"
keep = ["checkout::handle"]
[output]
every = "2s"
keep = "64MiB"
[[trigger]]
when = "duration(checkout::handle) > 100ms"
snapshot = { before = "200ms", after = "50ms" }
limit = "100/1m"
POLICY
}
# A small disk for the recordings, of which the relay leaves a mebibyte.
systemd-sysusers xray-relay.conf
mkdir -p /var/lib/xray-relay
mount -t tmpfs -o size=96m,mode=750,uid=xray-relay,gid=xray-relay tmpfs /var/lib/xray-relay
mkdir -p /run/systemd/system/xray-relay.service.d
cat > /run/systemd/system/xray-relay.service.d/disk.conf <<UNIT
[Service]
ExecStart=
ExecStart=/usr/bin/xray-relay --leave-mib 1
UNIT
cp /xrayd-test/access.toml /etc/xrayd/access.toml
systemctl daemon-reload

has() { xrayctl policy status checkout | grep -q "$1 matched, $1 traced"; }
instance() { systemctl show --value --property=MainPID "checkout@$1.service"; }
recordings() { xrayctl recordings list --json | grep -c '"name"'; }
firings() { xrayctl recordings firings --json | grep -c '"recording"'; }
handled() { awk '{ sum += $4 } END { print sum }' /srv/log/*[0-9]; }
more() { # COMMAND NUMBER
    [ "$($1)" -gt "$2" ]
}
goes_on_serving() {
    local before
    before=$(handled)
    sleep 1
    more handled "$before"
}

write_policy ""
for i in $instances; do systemctl start "checkout@$i"; done
systemctl start market
xrayctl policy reload > /dev/null
systemctl start xray-relay.service
result "all instances are traced" within_a_minute has 21
result "each of them is recorded" within_a_minute more recordings 42
result "slow requests have snapshots" within_a_minute more firings 20

for i in 1 2 3; do systemctl restart "checkout@$i"; done
result "instances that are restarted are traced" within_a_minute has 21
for i in 4 5; do systemctl kill --signal=SEGV "checkout@$i"; done
sleep 1
result "and instances that have crashed" within_a_minute has 21

install /xrayd-test/service_next /srv/server.new && mv /srv/server.new /srv/server
for i in 6 7 8 9 10; do systemctl restart "checkout@$i"; done
result "and the next release" within_a_minute has 21
result "which is another build" \
    eval '! cmp -s "/proc/$(instance 6)/exe" "/proc/$(instance 11)/exe"'

daemon=$(main_pid)
systemctl kill --signal=KILL xrayd.service
within_a_minute is_another "$daemon"
result "and all of them after the daemon was killed" within_a_minute has 21
systemctl kill --signal=KILL xray-relay.service
sleep 3
before=$(recordings)
result "a relay that was killed goes on" within_a_minute more recordings $((before + 21))
for program in xrayd xray-relay; do
    cp /usr/bin/$program /usr/bin/$program.new && mv /usr/bin/$program.new /usr/bin/$program
done
systemctl reload xrayd.service
systemctl restart xray-relay.service
result "an upgrade of both leaves all traced" \
    within_a_minute eval '! readlink "/proc/$(main_pid)/exe" | grep -q deleted && has 21'
before=$(recordings)
result "and recorded" within_a_minute more recordings $((before + 21))

# Retention removes the oldest files to make room.
cp -r /var/lib/xray-relay/. $kept/
dd if=/dev/zero of=/var/lib/xray-relay/fill bs=64k 2> /dev/null
result "the disk is full" [ "$(df --output=avail /var/lib/xray-relay | tail -1)" -lt 1024 ]
sleep 7
result "a full disk stops no service" goes_on_serving
result "and detaches from nothing" has 21
before=$(recordings)
rm /var/lib/xray-relay/fill
result "with room again, all are recorded" within_a_minute more recordings $((before + 21))
result "files that went for room are counted" \
    within_a_minute grep -q 'removed_files_total{policy="checkout"} [1-9]' /var/lib/xray-relay/metrics.prom
before=$(firings)
result "and so are slow requests" within_a_minute more firings "$before"

# The instances that end now have all their requests in the recordings.
for i in 11 12 13 14 15; do systemctl stop "checkout@$i"; done
result "instances that end are let go" within_a_minute has 16
sleep 5

write_policy "expires = $(date --utc --date='now + 6 seconds' +%Y-%m-%dT%H:%M:%SZ)"
xrayctl policy reload > /dev/null
result "the policy is in force until its end" has 16
expired() { xrayctl policy status checkout | grep -q "checkout: expired"; }
result "the policy expires" within_a_minute expired
# The relay lets go of the triggers first.
result "and has nothing on" \
    within_a_minute eval '! xrayctl ps | grep -E "server|market" | grep -q traced'
result "the services go on" goes_on_serving
systemctl stop 'checkout@*' market
systemctl stop xray-relay.service
cp -r /var/lib/xray-relay/. $kept/
cp -r /srv/log $kept/
result "the relay had no error but the full disk" \
    eval '! journalctl --unit=xray-relay.service --priority=err --output=cat | grep -v -E "disk|space|room|lines wait"'
echo end
