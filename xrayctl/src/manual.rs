//! The manual pages of the daemon: xrayd(8), its command line and sections that clap has no place
//! for, xrayd.toml(5), its configuration file, and xrayd-policy(5), a tracing policy.

use std::io;

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// A section behind the options: a title, a text, and a list of terms and their meanings.
type Section = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const SECTIONS: [Section; 6] = [
    (
        "SIGNALS",
        "",
        &[
            (
                "SIGTERM, SIGINT",
                "Stop: accept no more connections, detach from every process, compare its code \
                 with the file, end the streams, remove the socket. The stop takes less than a \
                 minute, even if a process does not answer. A second signal changes nothing.",
            ),
            (
                "SIGHUP",
                "Execute the daemon's program anew, in the same process and with the same \
                 arguments. The new daemon goes on with all sessions: functions stay on, and \
                 events in the rings are read. Recordings and other streams of clients end. Without \
                 a state folder (--state-dir), the daemon detaches from every process first.",
            ),
            (
                "SIGUSR1",
                "The next SIGTERM or SIGINT leaves all processes as they are, because another \
                 daemon comes. It needs a state folder, too.",
            ),
            (
                "SIGQUIT, SIGKILL",
                "End at once. The traced programs run on, and the next daemon goes on with the \
                 sessions.",
            ),
        ],
    ),
    (
        "EXIT STATUS",
        "",
        &[
            ("0", "The daemon was stopped by SIGTERM or SIGINT."),
            (
                "1",
                "The daemon could not start, or its server ended. The log has the cause, for \
                 example that another xrayd is running at the socket.",
            ),
            ("2", "The command line or the configuration file is wrong."),
        ],
    ),
    (
        "ENVIRONMENT",
        "",
        &[
            (
                "XRAYD_SOCKET, XRAYD_STATE_DIR, XRAYD_POLICIES_DIR, XRAYD_RETAIN_IN_FILES, \
                 XRAYD_METRICS, XRAYD_AUDIT, XRAYD_LOG_LEVEL",
                "Values of the options with these names. An option \
                 takes precedence, and they do over the configuration file.",
            ),
            (
                "STATE_DIRECTORY, XDG_STATE_HOME",
                "Set by the service manager, and by a user: where the default state folder is.",
            ),
            (
                "XDG_RUNTIME_DIR",
                "The directory of the default socket of a user's daemon.",
            ),
            (
                "LISTEN_FDS, LISTEN_PID, NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID",
                "Set by the service manager. It may pass one unix socket for clients and one TCP \
                 socket for metrics, and receives the daemon's state. It may watch whether the \
                 daemon's threads get to work.",
            ),
            (
                "JOURNAL_STREAM, NO_COLOR",
                "With the first, --log auto means journal. With the second, log lines have no \
                 colours.",
            ),
        ],
    ),
    (
        "FILES",
        "",
        &[
            (
                "/etc/xrayd/xrayd.toml, $XDG_CONFIG_HOME/xrayd/xrayd.toml",
                "The configuration file of root's daemon, and of a user's, see xrayd.toml(5).",
            ),
            (
                "/etc/xrayd/policies.d/*.toml, $XDG_CONFIG_HOME/xrayd/policies.d/*.toml",
                "The tracing policies of root's daemon, and of a user's, see xrayd-policy(5).",
            ),
            (
                "/run/xrayd/xrayd.sock",
                "The socket of root's daemon, mode 0666.",
            ),
            (
                "$XDG_RUNTIME_DIR/xrayd.sock",
                "The socket of a user's daemon, mode 0600.",
            ),
            (
                "SOCKET.lock",
                "The lock beside each socket. A daemon holds it while it lives. The file is never \
                 removed.",
            ),
            (
                "/var/lib/xrayd, $XDG_STATE_HOME/xrayd",
                "The default state folder of root's daemon, and of a user's: a file for each \
                 session, which names the functions that are on, and one for each policy. Mode \
                 0700.",
            ),
            (
                "xrayd.service, xrayd.socket, xrayd-metrics.socket",
                "The units of systemd. The last one is optional. group.conf and confined.conf are \
                 drop-ins for hosts with narrower rules, and explain themselves.",
            ),
        ],
    ),
    (
        "SECURITY",
        "Every user can connect to the socket of root's daemon. The kernel reports the caller's \
         user, and each call is decided by it: root may trace every process, and a user may trace \
         the processes that the kernel lets that user trace. Other calls are refused, and change \
         nothing. Decisions are in the audit record. Quotas bound the resources that users take. \
         Traced programs are not trusted: a hostile one harms its own session only.",
        &[
            (
                "Capabilities",
                "Root's daemon needs CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE and CAP_DAC_OVERRIDE, \
                 and CAP_SYS_ADMIN for processes under a seccomp filter, such as those in \
                 containers. xrayd.service drops all others.",
            ),
            (
                "Metrics",
                "The metrics endpoint is unauthenticated. Every client that can connect sees names \
                 of programs and functions.",
            ),
        ],
    ),
    (
        "SEE ALSO",
        "xrayctl(1), xrayd.toml(5), systemd.socket(5). In the source: docs/api.md, docs/metrics.md and \
         docs/threat-model.md.",
        &[],
    ),
];

/// The page of the daemon.
pub(crate) fn daemon_page() -> io::Result<String> {
    let man = Man::new(xrayd::config::Config::command()).section("8");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut roff = Roff::new();
    for (title, text, list) in SECTIONS {
        roff.control("SH", [title]);
        if !text.is_empty() {
            roff.text([roman(text)]);
        }
        for (term, meaning) in list {
            roff.control("TP", []);
            roff.text([bold(*term)]);
            roff.text([roman(*meaning)]);
        }
    }
    roff.to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    // Each part begins with the same definitions. A page needs them once.
    let definitions = Roff::new().render();
    Ok(definitions.clone() + &page.replace(&definitions, ""))
}

/// The keys of a policy's tables: the table, its meaning, and its keys with theirs.
const POLICY_TABLES: [Section; 3] = [
    (
        "",
        "",
        &[
            (
                "name",
                "The name of the policy: up to 64 letters, digits, -, _ and ., with a letter or a \
                 digit first.",
            ),
            (
                "expires",
                "The moment at which the policy ends, with its time zone, such as \
                 2027-01-31T00:00:00Z. Without it the policy does not end.",
            ),
        ],
    ),
    (
        "[match]",
        "The processes that the policy is for. All keys that are there must hold. A key holds if \
         one of its values matches. There must be one at least.",
        &[
            (
                "unit",
                "Globs for the systemd unit or the container. A user who may make units or control \
                 groups may choose their names, as every program may choose its command line: \
                 name the user, too.",
            ),
            (
                "cgroup",
                "Globs for the path of the control group. * does not match /, and ** does.",
            ),
            ("exe", "Globs for the path of the program, in the same way."),
            ("command", "Globs for the command line."),
            (
                "container",
                "Globs for the id of the container. The begin of an id suffices.",
            ),
            (
                "build_id",
                "Globs for the build id of the program, in hexadecimal digits. The begin of an id \
                 suffices.",
            ),
            ("user", "Names or numbers of users."),
            (
                "max_processes",
                "The most processes at a time. A free place goes to the oldest process. Without it: \
                 100.",
            ),
            (
                "min_age",
                "The age at which a process is attached to, such as 500ms. Without it: 0s.",
            ),
        ],
    ),
    (
        "[trace]",
        "What is recorded of these processes.",
        &[
            (
                "enable, except",
                "The functions that are on, and those among them that are not: globs of names, or \
                 tables with one of function, glob, regex, module and source. \"*\" is for all \
                 functions. enable must be there.",
            ),
            (
                "mode",
                "profile, stream, flight or count. Without it: profile.",
            ),
            (
                "arguments, results",
                "The number of arguments that are recorded, from 0 to 6, and true for results.",
            ),
            (
                "max_overhead, keep",
                "The limit on the cost of tracing, such as \"2%\", and names or globs of functions \
                 that it never suppresses.",
            ),
            (
                "duty",
                "A duty cycle, such as \"5ms/1s\". It excludes max_overhead.",
            ),
            (
                "min_duration, max_depth, one_in, inside, threads",
                "The calls that are recorded, as the options of xrayctl filter.",
            ),
            (
                "ring_size",
                "The size of each thread's ring, such as \"4MiB\".",
            ),
            ("follow", "none, fork, exec or all. Without it: none."),
        ],
    ),
];

/// The page of a policy.
pub(crate) fn policy_page() -> io::Result<String> {
    let mut roff = Roff::new();
    roff.control("TH", ["xrayd-policy", "5"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("xrayd-policy - tracing policy for xrayd")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "A tracing policy says which processes are traced, and how. It is a file of TOML. xrayd \
         carries out the policies in /etc/xrayd/policies.d/*.toml, and those that xrayctl policy \
         apply puts in force. It reads the folder at its start and at xrayctl policy reload. A file \
         with mistakes changes nothing. xrayctl policy check FILE shows the mistakes of a file, or \
         the processes that it matches now. Where a list of texts is possible, a single text is, \
         too. Unknown keys are mistakes.",
    )]);
    for (table, text, keys) in POLICY_TABLES {
        roff.control("SH", [if table.is_empty() { "KEYS" } else { table }]);
        if !text.is_empty() {
            roff.text([roman(text)]);
        }
        for (key, meaning) in keys {
            roff.control("TP", []);
            roff.text([bold(*key)]);
            roff.text([roman(*meaning)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in POLICY_EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("xrayctl-policy(1), xrayd(8)")]);
    Ok(roff.render())
}

/// A policy.
const POLICY_EXAMPLE: &str = r#"name = "checkout-latency"
expires = 2027-01-31T00:00:00Z

[match]
unit = "checkout@*.service"
max_processes = 20

[trace]
mode = "profile"
enable = ["checkout::*", { module = "libpay.so.*" }]
except = [{ function = "checkout::hot" }]
max_overhead = "2%"
"#;

/// The page of the configuration file.
pub(crate) fn file_page() -> io::Result<String> {
    let mut roff = Roff::new();
    roff.control("TH", ["xrayd.toml", "5"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("xrayd.toml - configuration file of xrayd")]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in [
        "xrayd reads /etc/xrayd/xrayd.toml at its start, and a user's daemon reads \
         $XDG_CONFIG_HOME/xrayd/xrayd.toml or ~/.config/xrayd/xrayd.toml. The option --config names \
         another file. Without a file, the defaults hold.",
        "The file is TOML. Its keys are the options of xrayd(8) without the dashes. An option that \
         can be given several times takes a list. The command line wins over the environment, and \
         both over the file. xrayd --print-config shows the values in force and where they come \
         from, in the form of the file.",
        "The file must belong to root or to the daemon's user, and no other user may write to it. \
         A file with a mistake keeps the daemon from starting. It names all mistakes with their \
         lines and columns. A change takes effect when the daemon is restarted (systemctl reload, \
         xrayctl daemon restart). With a mistake, it goes on as it is.",
    ] {
        roff.control("PP", []);
        roff.text([roman(paragraph)]);
    }
    roff.control("SH", ["KEYS"]);
    for key in xrayd::config_file::keys() {
        roff.control("TP", []);
        roff.text([bold(key.name), roman(" = "), roman(key.value)]);
        roff.text([roman(key.help)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in [
        "retain = \"1GiB\"",
        "quota = [\"sessions=100/500\"]",
        "audit = \"off\"",
    ] {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("xrayd(8), xrayctl(1)")]);
    Ok(roff.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_file_has_the_options() {
        let page = file_page().unwrap();
        for option in xrayd::config::Config::command().get_arguments() {
            let name = option.get_long().unwrap();
            let is_there = page.contains(&format!(r"\fB{}\fR = ", name.replace('-', r"\-")));
            let is_known = !["config", "print-config"].contains(&name);
            assert_eq!(is_there, is_known, "{name}: {page}");
        }
    }

    #[test]
    fn the_example_of_a_policy_has_no_mistake() {
        let page = policy_page().unwrap();
        assert!(page.contains("checkout\\-latency"), "{page}");
        xrayd::policies::PolicySpec::parse(POLICY_EXAMPLE).unwrap();
        // Each key of the page is one.
        for (table, _, keys) in POLICY_TABLES {
            for key in keys.iter().flat_map(|(keys, _)| keys.split(", ")) {
                let text = format!("{table}\n{key} = []\n");
                let mistakes = xrayd::policies::PolicySpec::parse(&text).unwrap_err();
                let is_unknown = mistakes.iter().any(|it| it.what.starts_with("unknown key"));
                assert!(!is_unknown, "{key}: {mistakes:?}");
            }
        }
    }

    #[test]
    fn the_page_of_the_daemon_has_its_options_and_sections() {
        let page = daemon_page().unwrap();
        assert!(page.contains(".TH xrayd 8 "), "{page}");
        assert_eq!(page.matches(".ie ").count(), 1, "{page}");
        let lines: Vec<_> = page.lines().collect();
        for (title, ..) in SECTIONS {
            let heading = [format!(".SH {title}"), format!(".SH \"{title}\"")];
            let mut headings = heading.iter();
            assert!(
                headings.any(|heading| lines.contains(&heading.as_str())),
                "{title}"
            );
        }
        for option in xrayd::config::Config::command().get_arguments() {
            let name = option.get_long().unwrap().replace('-', r"\-");
            assert!(page.contains(&format!(r"\fB\-\-{name}\fR")), "{name}");
        }
    }
}
