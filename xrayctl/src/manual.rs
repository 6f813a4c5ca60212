//! The manual page of the daemon, xrayd(8): its command line, and sections that clap has no place
//! for.

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
            ("2", "The command line cannot be parsed."),
        ],
    ),
    (
        "ENVIRONMENT",
        "",
        &[
            (
                "XRAYD_SOCKET, XRAYD_STATE_DIR, XRAYD_METRICS, XRAYD_AUDIT, XRAYD_LOG_LEVEL",
                "Values of --socket, --state-dir, --metrics, --audit and --log-level. An option \
                 takes precedence.",
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
                 session, which names the functions that are on. Mode 0700.",
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
        "xrayctl(1), systemd.socket(5). In the source: docs/api.md, docs/metrics.md and \
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

#[cfg(test)]
mod tests {
    use super::*;

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
