//! xrayd-policy(5): a tracing policy.

use super::{KeyTable, page};

/// The keys of a policy's tables: the table, its meaning, and its keys with theirs.
const POLICY_TABLES: [KeyTable; 5] = [
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
    (
        "[output]",
        "The files that xray-relay(8) writes for the policy. Without this table it writes none. A \
         policy in mode count has none, and one with this table follows no processes (follow).",
        &[
            (
                "every",
                "The time that a file covers, 1s or more. In mode profile, a file has the sums of \
                 this time. In mode flight, it is a snapshot of it. In mode stream, the next file \
                 begins after it. Without it: 1m, and 1h in mode stream.",
            ),
            (
                "max_file",
                "The size after which the next file of a stream begins, 1MiB or more. Without it: \
                 64MiB.",
            ),
            (
                "keep",
                "The most bytes of all files of the policy, such as \"2GiB\". The oldest files go \
                 first. Without it: 1GiB.",
            ),
            (
                "keep_for",
                "The age at which a file goes, such as \"168h\". Without it, files go for their \
                 size alone.",
            ),
        ],
    ),
    (
        "[[trigger]]",
        "A moment of which xray-relay(8) writes a snapshot. There can be 8 such tables. They need \
         [output]. While a trigger waits for calls or events, the processes record events, also in \
         mode profile. The functions of its conditions are on, also those that enable leaves out.",
        &[
            (
                "when",
                "The conditions, as xrayctl-trigger(1) has them, but for demand: \
                 \"duration(checkout::handle) > 100ms\", \"death\". The trigger fires if one of them \
                 is met in a process of the policy. It must be there.",
            ),
            (
                "snapshot",
                "The time around the moment that the file covers, such as { before = \"1s\", after = \
                 \"200ms\" }. It begins earlier if the call that met the condition did. Without \
                 before it has the oldest events that are there. Without after it ends at the \
                 moment. The file is of the process in which the condition was met.",
            ),
            (
                "limit",
                "The most firings for a time, in all processes together, such as \"10/1h\", which is \
                 meant without it. Further moments are counted. A relay that starts begins to count \
                 anew.",
            ),
            (
                "event_formats",
                "The data of events whose fields conditions compare, such as \
                 [\"order=id:u64,price:f64\"], as the option --event-format has them.",
            ),
        ],
    ),
];

/// The page of a policy.
pub(crate) fn policy_page() -> String {
    let description = "A tracing policy says which processes are traced, and how. It is a file of TOML. xrayd \
         carries out the policies in /etc/xrayd/policies.d/*.toml, and those that xrayctl policy \
         apply puts in force. It reads the folder at its start and at xrayctl policy reload. A \
         file with mistakes changes nothing. xrayctl policy check FILE shows the mistakes of a \
         file, or the processes that it matches now. Where a list of texts is possible, a single \
         text is, too. Unknown keys are mistakes.";
    page(
        ("xrayd-policy", "5", "tracing policy for xrayd"),
        description,
        &POLICY_TABLES,
        POLICY_EXAMPLE,
        "xrayctl-policy(1), xrayd(8), xray-relay(8)",
    )
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

[output]
every = "1m"
keep_for = "168h"

[[trigger]]
when = ["duration(checkout::handle) > 100ms", "death"]
snapshot = { before = "1s", after = "200ms" }
limit = "10/1h"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_a_policy_has_no_mistake() {
        let page = policy_page();
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
}
