//! xrayd-access(5): rules of access.

use super::{KeyTable, page};

/// The keys of a rule.
const ACCESS_TABLES: [KeyTable; 3] = [
    (
        "KEYS",
        "Each [[allow]] is a rule. The rights of all rules that are for a user add up. What no rule \
         gives is denied, except what the user has anyway: root has all rights, and a user may \
         trace the processes that the kernel lets that user trace.",
        &[
            (
                "to",
                "The users of the rule: a table with user, group, or both. Each has a name, a \
                 number, or a list of these. A process is in a group if the group is among its \
                 groups when it connects. confined = true includes processes that a sandbox \
                 confines: under a seccomp filter, or with no_new_privs. Without it, the rule is \
                 not for these.",
            ),
            (
                "verbs",
                "The rights: one of those below, or a list of them.",
            ),
            (
                "match",
                "The processes of the rule: a table with one or more of unit, cgroup, exe, \
                 command, container and user, as in xrayd-policy(5). All of them must hold, now \
                 and at the attach. A process may choose its command line, and a user its \
                 programs, so unit, user and cgroup identify a service best. A unit of a user's \
                 own service manager meets no unit of a rule.",
            ),
        ],
    ),
    (
        "RIGHTS TO PROCESSES",
        "They need match.",
        &[
            ("list", "Seeing a process, its functions and its state."),
            (
                "count",
                "Attaching to it, switching its functions, counts of calls, detaching. Includes \
                 list.",
            ),
            ("profile", "Sums of calls by stack. Includes count."),
            (
                "trace",
                "Each call with its time: recordings, snapshots, triggers. Includes profile.",
            ),
            (
                "arguments",
                "Recording and reading arguments and results of calls, and arguments of system \
                 calls. Without it they are left out of what the user reads.",
            ),
            (
                "events",
                "Reading the data of events that the program emits, and conditions on it. Without \
                 it the data is left out.",
            ),
        ],
    ),
    (
        "OTHER RIGHTS",
        "They are for the whole daemon. Their rule has no match.",
        &[
            (
                "recordings",
                "Seeing the policies, reading all that they record, arguments and data included, and \
                 arming their triggers. It changes no process otherwise.",
            ),
            (
                "policy",
                "Seeing and changing the policies. A policy can record everything of all \
                 processes.",
            ),
            (
                "admin",
                "Restarting the daemon, and seeing and reloading the rules of access.",
            ),
        ],
    ),
];

/// The page of the rules of access.
pub(crate) fn access_page() -> String {
    let description = "Rules of access give users and groups rights to processes of other users. xrayd reads \
         them from /etc/xrayd/access.toml at its start and at xrayctl access reload; a user's \
         daemon reads $XDG_CONFIG_HOME/xrayd/access.toml or ~/.config/xrayd/access.toml. A file \
         with mistakes changes nothing: the rules before stay in force, also in the next daemon. \
         The file must belong to root or to the daemon's user, and no other user may write to it. \
         A running stream keeps the rights that it began with. xrayctl access check --as USER \
         answers what a user may do, and why.";
    page(
        ("xrayd-access", "5", "rules of access for xrayd"),
        description,
        &ACCESS_TABLES,
        ACCESS_EXAMPLE,
        "xrayctl-access(1), xrayd-policy(5), xrayd(8)",
    )
}

/// Rules of access.
const ACCESS_EXAMPLE: &str = r#"# The engineers on call may profile the checkout service.
[[allow]]
to = { group = "oncall" }
verbs = ["profile"]
match = { unit = "checkout@*.service", user = "checkout" }

# Its developers may record calls with their arguments.
[[allow]]
to = { user = ["alice", "bob"] }
verbs = ["trace", "arguments", "events"]
match = { unit = "checkout@*.service", user = "checkout" }
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use xrayd::access::{Rules, Verb};

    #[test]
    fn the_page_has_all_rights_and_its_example_no_mistake() {
        let page = access_page();
        for verb in Verb::ALL {
            assert!(
                page.contains(&format!("\\fB{verb}\\fR\n")),
                "{verb}: {page}"
            );
        }
        let known = ACCESS_EXAMPLE
            .replace("\"oncall\"", "\"0\"")
            .replace("\"checkout\"", "\"0\"")
            .replace("\"alice\", \"bob\"", "\"1\", \"2\"");
        Rules::parse(&known).unwrap();
    }
}
