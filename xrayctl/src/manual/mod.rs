//! The manual pages of the daemon: xrayd(8), its command line and sections that clap has no place
//! for, and xrayd.toml(5), its configuration file. Pages of other files are in files of their own.

mod access;
mod policy;
mod relay;

use std::io;

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

pub(crate) use access::access_page;
pub(crate) use policy::policy_page;
pub(crate) use relay::relay_page;

/// A section behind the options, or a table of a file: a title, a text, and a list of terms and
/// their meanings.
type KeyTable = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const SECTIONS: [KeyTable; 6] = [
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

/// A page: its name, section and title, what it is about, its tables, an example, and related
/// pages.
fn page(
    (name, section, title): (&str, &str, &str),
    description: &str,
    tables: &[KeyTable],
    example: &str,
    see_also: &str,
) -> String {
    let mut roff = Roff::new();
    roff.control("TH", [name, section]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {title}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(description)]);
    for (table, text, keys) in tables {
        roff.control("SH", [if table.is_empty() { "KEYS" } else { table }]);
        if !text.is_empty() {
            roff.text([roman(*text)]);
        }
        for (key, meaning) in *keys {
            roff.control("TP", []);
            roff.text([bold(*key)]);
            roff.text([roman(*meaning)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in example.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(see_also)]);
    roff.render()
}

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
