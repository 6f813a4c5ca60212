#!/bin/bash
# Runs in a booted systemd of a clean Debian, and checks what the package promises: its installation,
# upgrade, removal and purge beside a program at work.
#
# The files /xrayd-test/first.deb and /xrayd-test/second.deb are the package in two versions.

. /xrayd-test/checks.sh

export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -y "$@" >&2; }
install_later() { dpkg --install /xrayd-test/second.deb > /tmp/upgrade 2>&1; }
configure() { dpkg --configure xrayd >&2; }
version() { dpkg-query --show --showformat='${Version}' xrayd; }
# Files of the package that exist.
files() {
    while read -r path; do [ -f "$path" ] && echo "$path"; done < /tmp/files
}
# Whatever has the package's name, except for this test.
remains() {
    find / -xdev \( -path /proc -o -path /tmp -o -path /var/log -o -name 'xrayd-test*' \) -prune \
        -o -name '*xray*' -print
}
program_is_current() {
    [ "$(stat --dereference --format=%i "/proc/$(main_pid)/exe")" = "$(stat --format=%i /usr/bin/xrayd)" ]
}
has_limit() { grep -q "Max open files *$1 " "/proc/$(main_pid)/limits"; }

before=$(remains)
result "the root has no xrayd" [ -z "$before" ]

result "the installation succeeds" apt install /xrayd-test/first.deb
result "the socket listens, and the relay runs" \
    systemctl is-active --quiet xrayd.socket xray-relay.service
result "the socket starts with the system, the other units do not" \
    [ "$(systemctl is-enabled xrayd.socket xray-relay.service xrayd.service xrayd-metrics.socket | tr '\n' ' ')" = "enabled enabled disabled disabled " ]
# The commands of docs/operating.md, on a service of that name.
cat > /run/systemd/system/checkout@.service <<UNIT
[Service]
ExecStart=/xrayd-test/service --workers 2 --pause 1000 --slow-every 2000 --log /run
UNIT
systemctl daemon-reload
systemctl start checkout@1 checkout@2
# Each command with the lines of its here-document.
commands() {
    sed -n '/^```console$/,/^```$/p' /xrayd-test/operating.md | grep -v '^```' |
        awk '/^\$ / { if (text != "") printf "%s%c", text, 0; text = substr($0, 3); next }
            { text = text "\n" $0 }
            END { printf "%s%c", text, 0 }'
}
step() { eval "$1" > /tmp/guide; }
sudo() { "$@"; }
export -f sudo
mapfile -d '' guide < <(commands)
result "the guide has ten commands" [ ${#guide[@]} = 10 ]
for command in "${guide[@]}"; do
    case "$command" in
        *"apt install"*) continue ;;
        *"policy status"*)
            within_a_minute eval 'xrayctl policy status checkout | grep -q "2 matched, 2 traced"'
            ;;
        *account*)
            sed -i 's/every = "1m"/every = "1s"/' /etc/xrayd/policies.d/checkout.toml
            xrayctl policy reload > /dev/null
            within_a_minute eval '[ "$(xrayctl recordings list --json | grep "\"name\"" | grep -vc trigger)" -ge 4 ]'
            ;;
        *firings*)
            within_a_minute eval 'xrayctl recordings firings | grep -q xtrace'
            ;;
    esac
    result "the guide's command succeeds: ${command%%$'\n'*}" step "$command"
    case "$command" in
        *"policy status"*) result "two instances are traced" grep -q "2 traced" /tmp/guide ;;
        *account*) result "the functions are in them" grep -q "checkout::handle" /tmp/guide ;;
        *firings*) result "slow requests have files" grep -q "trigger1.xtrace" /tmp/guide ;;
    esac
done
within_a_minute eval '! xrayctl ps | grep service | grep -q traced'
result "the instances are released" eval '! xrayctl ps | grep service | grep -q traced'
systemctl stop checkout@1 checkout@2
# Its requests would start the daemon again.
result "the relay can be disabled" systemctl disable --now xray-relay.service
result "the configuration file is read and changes nothing" \
    eval 'xrayd --print-config | grep -q "xrayd.toml\" was read" && ! xrayd --print-config | grep -q "# file"'
result "configuration files are marked" \
    [ "$(dpkg-query --show --showformat='${Conffiles}' xrayd | grep -c /etc/xrayd/)" = 3 ]
dpkg --listfiles xrayd > /tmp/files
for file in /usr/share/man/man1/xrayctl-record.1.gz /usr/share/man/man8/xrayd.8.gz \
    /usr/share/man/man5/xrayd.toml.5.gz /usr/share/man/man5/xrayd-policy.5.gz \
    /usr/share/bash-completion/completions/xrayctl /usr/share/zsh/vendor-completions/_xrayctl \
    /usr/share/fish/vendor_completions.d/xrayctl.fish /usr/share/doc/xrayd/changelog.Debian.gz; do
    # A minimal Debian leaves out documents when it unpacks, so the list decides.
    result "the package has $file" grep -q "^$file\$" /tmp/files
done

result "a client starts the daemon" xrayctl attach "$pid" --mode stream
xrayctl attach "$rest" --mode stream > /dev/null
result "functions are switched on" xrayctl enable --all
result "the program is traced" goes_on
touch /tmp/go
within_a_minute grep -q result /tmp/worked
sleep 1
worked=$(retained)
result "events are retained" [ "$worked" -gt 1000 ]

# The new version has another limit in its unit.
mkdir -p /run/systemd/system/xrayd.service.d
printf '[Service]\nLimitNOFILE=10000\n' > /run/systemd/system/xrayd.service.d/limit.conf
first=$(main_pid)
former=$(version)
result "the upgrade succeeds" apt install /xrayd-test/second.deb
result "the package has the new version" dpkg --compare-versions "$(version)" gt "$former"
result "another daemon runs" is_another "$first"
result "it is the new program" program_is_current
result "the new unit applies to it" has_limit 10000
result "the upgrade detaches from nothing" \
    eval 'logged "left to the next daemon" && ! logged "detached pid"'
result "the program stays traced" goes_on
result "with the retained events" keeps_events
result "the socket listens" systemctl is-active --quiet xrayd.socket

echo 'retain = "lots"' >> /etc/xrayd/xrayd.toml
second=$(main_pid)
result "a disabled relay stays disabled" \
    eval '! systemctl is-enabled --quiet xray-relay.service && ! systemctl is-active --quiet xray-relay.service'
result "an upgrade with a mistake in the configuration fails" \
    eval '! install_later'
result "and says what to do" grep -q "run: dpkg --configure xrayd" /tmp/upgrade
result "the former daemon goes on" eval '[ "$(main_pid)" = "$second" ] && goes_on'
sed -i '$d' /etc/xrayd/xrayd.toml
result "the upgrade goes on when the mistake is corrected" configure
result "another daemon runs" is_another "$second"
result "the program stays traced" goes_on

printf '[Service]\nExecStart=\nExecStart=/bin/false\n' > /run/systemd/system/xrayd.service.d/fails.conf
result "an upgrade fails if the new daemon does" \
    eval '! install_later'
rm /run/systemd/system/xrayd.service.d/fails.conf
within_a_minute systemctl is-failed --quiet xrayd.service
systemctl reset-failed xrayd.service xrayd.socket
result "the upgrade goes on when the daemon can start" configure
result "the program stays traced" goes_on

printf '[Service]\nExecStartPost=/bin/sleep 10\n' > /run/systemd/system/xrayd.service.d/slow.conf
systemctl daemon-reload
systemctl --no-block restart xrayd.service
within_a_minute eval '[ "$(systemctl is-active xrayd.service)" = activating ]'
within_a_minute is_traced
result "an upgrade while a daemon starts succeeds" install_later
result "the program stays traced" goes_on
rm /run/systemd/system/xrayd.service.d/slow.conf
within_a_minute systemctl is-active --quiet xrayd.service

cp /usr/bin/xrayctl /xrayd-test/
shows() { /xrayd-test/xrayctl ps --json | grep -q "\"state\": *\"$1\""; }
result "the removal succeeds" apt remove xrayd
result "it detaches" logged "detached pid"
result "and leaves nothing on" eval 'shows ready && ! shows traced && ! shows left-on'
result "the program lives" kill -0 "$pid"
result "no daemon runs" eval '! ls -l /proc/[0-9]*/exe | grep -q /usr/bin/xrayd'
result "only the configuration files remain of the package" \
    [ "$(files | sort | tr '\n' ' ')" = "/etc/xrayd/access.toml /etc/xrayd/policies.d/README /etc/xrayd/xrayd.toml " ]
result "and nothing in /run" [ ! -e /run/xrayd ]
result "the state remains" [ -d /var/lib/xrayd ]

result "it can be installed again" apt install /xrayd-test/first.deb
xrayctl attach "$pid" > /dev/null
xrayctl enable --all > /dev/null
printf '[Service]\nRestart=no\n' > /run/systemd/system/xrayd.service.d/restart.conf
systemctl daemon-reload
systemctl kill --signal=KILL xrayd.service
result "no daemon runs" within_a_minute eval '[ "$(main_pid)" = 0 ]'
systemctl stop xrayd.socket
result "functions are left on" eval 'shows left-on && ! shows traced'
result "the removal succeeds without a daemon" apt remove xrayd
result "and leaves nothing on" eval 'shows ready && ! shows traced && ! shows left-on'
result "the program lives" kill -0 "$pid"
rm -r /run/systemd/system/xrayd.service.d

touch /etc/xrayd/policies.d/own.toml
result "the purge succeeds" apt purge xrayd
remains=$(remains)
result "nothing remains:$remains" [ -z "$remains" ]
echo end
