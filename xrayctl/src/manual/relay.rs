//! xray-relay(8): the program that writes what policies record. Its own tests compare the options.

use super::{KeyTable, page};

const RELAY_TABLES: [KeyTable; 4] = [
    (
        "OPTIONS",
        "",
        &[
            (
                "--socket PATH",
                "The socket of the daemon. Default: $XRAYD_SOCKET, else /run/xrayd/xrayd.sock.",
            ),
            (
                "--folder PATH",
                "The folder of the recordings. Default: $STATE_DIRECTORY, else \
                 /var/lib/xray-relay.",
            ),
            (
                "--keep-mib MIB",
                "The most MiB of all policies together, 10240 by default. The oldest files go \
                 first.",
            ),
            (
                "--leave-mib MIB",
                "The MiB of the disk that stay free, 1024 by default. The oldest files go first.",
            ),
            (
                "--log-level LEVEL",
                "The most detailed level of log lines: off, error, warn, info, debug or trace. \
                 Default: info.",
            ),
            ("--help, --version", "Print a text, and end."),
        ],
    ),
    (
        "FILES",
        "",
        &[
            (
                "POLICY/DATE/TIMEZ-PID.xtrace",
                "A recording, in the folder of the recordings. Date and time are those of its \
                 begin, in UTC. A stream that is still written ends in .part; it can be read up to \
                 its end. Another file that is still written ends in .unfinished, and is of no use \
                 until it is whole. Files have mode 0640.",
            ),
            (
                "POLICY/DATE/TIMEZ-PID-triggerN.xtrace",
                "The snapshot of a moment at which the trigger N of the policy has fired. Date and \
                 time are those at which the file was begun.",
            ),
            (
                "POLICY/firings.jsonl",
                "A line of JSON for each of these moments: which condition was met, when, in which \
                 thread, and the file. xrayctl recordings firings shows it.",
            ),
            (
                "POLICY/losses.jsonl",
                "What is in no file, and in begins.jsonl the time before each process was recorded for \
                 the first time: a line of JSON for each time in which a process was not \
                 recorded, and for events that the daemon dropped before the relay came for them. \
                 xrayctl recordings losses shows it.",
            ),
            (
                "POLICY/.sums, POLICY/.active",
                "What the relay needs to go on after it was stopped or killed. The next stream of a \
                 process begins where its files end.",
            ),
            (
                "metrics.prom",
                "Numbers in the text format of Prometheus, for the textfile collector of its node \
                 exporter: files and bytes written and kept, removed files, gaps, lost events, firings \
                 of triggers.",
            ),
        ],
    ),
    (
        "RIGHTS",
        "The relay needs the right recordings (xrayd-access(5)), and no right of the kernel. \
         xray-relay.service runs it as the user xray-relay in a sandbox, so the rule has \
         confined = true. Members of the group xray-relay may read the recordings.",
        &[],
    ),
    (
        "LOSSES",
        "A slow or full disk never slows a traced process: the daemon drops events that the relay \
         does not take in time, and counts them. Sums of mode profile are in the program, so a \
         relay or a daemon that was gone loses none of them, unless a trigger waits for calls: then \
         a daemon that ends takes the sums since the latest file along. Of a stream, the time \
         without a relay is lost. All of that is noted. So is the time before a process was \
         recorded for the first time, which xrayctl recordings losses shows with --begins. Moments of triggers without a relay are lost: the time \
         is noted, with the process 0.",
        &[],
    ),
];

/// The page of the relay.
pub(crate) fn relay_page() -> String {
    let description = "xray-relay writes what the policies of xrayd record to files. Each second it asks the \
         daemon which processes are traced for a policy with a table [output] (xrayd-policy(5)), \
         and records each of them: all events in mode stream, the sums of each period in mode \
         profile, a snapshot of each period in mode flight. On SIGTERM it ends its files.";
    page(
        ("xray-relay", "8", "recordings of xrayd's tracing policies"),
        description,
        &RELAY_TABLES,
        "xray-relay --folder /srv/recordings --keep-mib 51200",
        "xrayctl-recordings(1), xrayd-policy(5), xrayd-access(5), xrayd(8)",
    )
}
